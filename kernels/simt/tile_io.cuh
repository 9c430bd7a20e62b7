// Copies tiles of any element type from memory to float32 tiles in shared memory. Copies results back to memory.
//
// Loads pass through registers, because 16-bit elements have to be widened. Loads also report whether all loaded
// numbers were finite (guarded_product.cuh).
#pragma once

#include "../attention/key_range.cuh"
#include "../common/element.cuh"
#include "../common/portable.cuh"
#include "../tiles/fp32_tile.cuh"

namespace attend {

// Number of loads that a thread issues before it waits. Blocks that load columns in panels need most registers for
// sums, so they have fewer loads in flight.
template <class Config>
constexpr int kLoadsInFlight = Config::kPanels == 1 ? 4 : 2;

// Detects non-finite numbers. 0 * x is 0 if x is finite, and NaN otherwise.
struct FiniteWatch {
  float zero = 0.0f;

  __device__ __forceinline__ void see(float value) { zero = fmaf(value, 0.0f, zero); }
  [[nodiscard]] __device__ __forceinline__ bool saw_other() const { return zero != 0.0f; }
};

// Rows of a tensor that a block loads. Only the first num_rows rows and num_cols columns exist. All other elements are
// read as zeros.
template <class Config>
struct RowSource {
  using Storage = typename ElementOf<Config>::Storage;
  const Storage* data;  // address of the first column of the first row
  int64 row_stride;     // in elements
  int num_rows;
  int num_cols;

  // `offset` is the offset of the first row, in elements. row_stride is also in elements.
  [[nodiscard]] static __device__ __forceinline__ RowSource of(const void* tensor, int64 offset, int64 row_stride,
                                                               int64 rows_left, int num_cols) {
    return {static_cast<const Storage*>(tensor) + offset, row_stride, static_cast<int>(min(rows_left, kBeyondTile)),
            num_cols};
  }

  [[nodiscard]] __device__ __forceinline__ RowSource columns_from(int col) const {
    return {data + col, row_stride, num_rows, num_cols - col};
  }

  template <int kCount>
  __device__ __forceinline__ void read(float (&values)[kCount], int row, int col) const {
    if (row < num_rows && col < num_cols) {  // the columns of aligned rows consist of full runs
      load_elements<Config>(values, data + row * row_stride + col);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = 0.0f;
    }
  }
};

// Loads rows of the tensor into rows of the tile at smem_offset.
template <class Tile, class Config>
__device__ __forceinline__ void load_rows(int smem_offset, const RowSource<Config>& source, FiniteWatch& watch) {
  constexpr int kRows = Tile::kRows;
  constexpr int kCount = Config::kAligned ? kVectorElements<Config> : 1;
  constexpr int kRuns = Tile::kCols / kCount;
#pragma unroll kLoadsInFlight < Config>
  for (int index = threadIdx.x; index < kRows * kRuns; index += Config::kThreads) {
    const int row = index / kRuns;
    const int col = index % kRuns * kCount;
    float values[kCount];
    source.read(values, row, col);
#pragma unroll
    for (int i = 0; i < kCount; ++i) watch.see(values[i]);
    if constexpr (kCount == 1) {
      *reinterpret_cast<float*>(fp32_smem + smem_offset + Tile::offset(row, col)) = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += kChunkFloats) {
        *reinterpret_cast<float4*>(fp32_smem + smem_offset + Tile::offset(row, col + i)) =
            make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
      }
    }
  }
}

// Loads columns of the tensor into rows of the tile at smem_offset. Lanes have neighbouring rows of the tensor, so that
// they write to neighbouring banks. If the rows are not aligned, a warp loads 8 columns of 4 rows. These are full
// sectors in memory. Together with 4 floats of padding after each row of the tile, the warp's stores then use every
// bank once.
template <class Tile, class Config>
__device__ __forceinline__ void load_transposed(int smem_offset, const RowSource<Config>& source) {
  constexpr int kRows = Tile::kCols, kDepth = Tile::kRows;
  static_assert(kDepth % 8 == 0 && kRows % 4 == 0);
  if constexpr (Config::kAligned) {
    constexpr int kCount = kVectorElements<Config>;
#pragma unroll kLoadsInFlight < Config>
    for (int index = threadIdx.x; index < kRows * kDepth / kCount; index += Config::kThreads) {
      const int row = index % kRows;
      const int col = index / kRows * kCount;
      float values[kCount];
      source.read(values, row, col);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        *reinterpret_cast<float*>(fp32_smem + smem_offset + Tile::offset(col + i, row)) = values[i];
      }
    }
  } else {
#pragma unroll kLoadsInFlight < Config>
    for (int index = threadIdx.x; index < kRows * kDepth; index += Config::kThreads) {
      const int group = index / 32;
      const int row = group % (kRows / 4) * 4 + index % 4;
      const int col = group / (kRows / 4) * 8 + index % 32 / 4;
      float values[1];
      source.read(values, row, col);
      *reinterpret_cast<float*>(fp32_smem + smem_offset + Tile::offset(col, row)) = values[0];
    }
  }
}

// Writes numbers to four neighbouring columns of a row, from `col` on. Columns from num_cols on are skipped.
template <class Config>
__device__ __forceinline__ void store_chunk(typename ElementOf<Config>::Storage* row, int col, int num_cols,
                                            const float (&numbers)[kChunkFloats]) {
  using Element = ElementOf<Config>;
  if constexpr (!Config::kAligned) {
#pragma unroll
    for (int c = 0; c < kChunkFloats; ++c) {
      if (col + c < num_cols) row[col + c] = Element::round(numbers[c]);
    }
  } else {
    if (col >= num_cols) return;
    if constexpr (Element::kType == ElementType::kF32) {
      *reinterpret_cast<float4*>(row + col) = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
    } else {
      static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));
      *reinterpret_cast<uint2*>(row + col) =
          make_uint2(Element::pack(numbers[0], numbers[1]), Element::pack(numbers[2], numbers[3]));
    }
  }
}

// Writes factor * numbers to the lane's columns of a row.
template <class Config, int kDims>
__device__ __forceinline__ void store_row(typename ElementOf<Config>::Storage* row, int num_cols, ChunksOfLane at,
                                          const float (&numbers)[kDims], float factor) {
#pragma unroll
  for (int d = 0; d < kDims; d += kChunkFloats) {
    float chunk[kChunkFloats];
#pragma unroll
    for (int c = 0; c < kChunkFloats; ++c) chunk[c] = numbers[d + c] * factor;
    store_chunk<Config>(row, at.column(d), num_cols, chunk);
  }
}

// Writes keep * row + factor * numbers to the lane's columns of a row of floats. If has_row is false, the old contents
// of the row are ignored, because they may be undefined. Used if kAddsToOutputs is set.
template <int kDims>
__device__ __forceinline__ void add_to_row(float* row, int num_cols, ChunksOfLane at, const float (&numbers)[kDims],
                                           bool has_row, float keep, float factor) {
#pragma unroll
  for (int d = 0; d < kDims; ++d) {
    const int col = at.column(d);
    if (col < num_cols) row[col] = fmaf(keep, has_row ? row[col] : 0.0f, numbers[d] * factor);
  }
}

}  // namespace attend
