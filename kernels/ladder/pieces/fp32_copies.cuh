// Asynchronous copies of float32 rows from memory to tiles in shared memory. Rung 08 uses them.
#pragma once

#include "../../tiles/fp32_tile.cuh"

namespace attend {

// Starts a copy of 4 or 16 bytes. If the element does not exist, nothing is read, and zeros are written.
template <int kBytes>
__device__ __forceinline__ void copy_async(int smem_offset, const float* gmem, bool exists) {
  const auto to = static_cast<uint32>(__cvta_generic_to_shared(fp32_smem + smem_offset));
  const int source_bytes = exists ? kBytes : 0;
  if constexpr (kBytes == kChunkBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gmem), "r"(source_bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(gmem), "r"(source_bytes) : "memory");
  }
}

// Waits for all copies that this thread has started. Other threads may read the data after the next barrier.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Starts the copies of a tensor's rows to a tile. Rows from num_rows on and columns from kHeadDim on become zeros.
// Thread t copies chunk t % 8 of every panel, in the rows t / 8 + i * kRowStep. The numbers i * kRowStep and t / 8 have
// no set bit in common, so the flips of these rows differ by a constant XOR.
template <class Config, class Tile>
__device__ __forceinline__ void copy_tile_async(int smem_offset, const float* gmem, int64 row_stride, int64 num_rows) {
  constexpr int kRows = Tile::kRows, kCols = Tile::kCols;
  const int rows_left = static_cast<int>(min(num_rows, int64{kRows}));
  if constexpr (Config::kAligned) {
    constexpr int kRowStep = Config::kThreads / 8;
    static_assert(kRows % kRowStep == 0 && (kRowStep & (kRowStep - 1)) == 0);
    const int first_row = threadIdx.x / 8;
    const int first_col = threadIdx.x % 8 * kChunkFloats;
    const int place = smem_offset + Tile::offset(first_row, first_col);
    const float* source = gmem + first_row * row_stride + first_col;
#pragma unroll
    for (int row = 0; row < kRows; row += kRowStep) {
#pragma unroll
      for (int panel = 0; panel < kCols; panel += kBankRowBytes / 4) {
        const bool exists =
            first_row + row < rows_left && (Config::kHeadDim == kCols || panel + first_col < Config::kHeadDim);
        copy_async<kChunkBytes>((place ^ Tile::flip(row)) + row * Tile::kRowBytes + panel * 4, source + panel, exists);
      }
      source += kRowStep * row_stride;
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * kCols; i += Config::kThreads) {
      const int row = i / kCols;
      const int col = i % kCols;
      const bool exists = row < rows_left && col < Config::kHeadDim;
      copy_async<4>(smem_offset + Tile::offset(row, col), exists ? gmem + row * row_stride + col : gmem, exists);
    }
  }
}

// Starts copies to a transposed tile, whose rows are columns of the tensor. Missing elements become zeros.
template <class Config, class Tile>
struct TransposedCopies {
  static constexpr int kRows = Tile::kCols;
  static constexpr int kDepth = Tile::kRows;
  static constexpr int kWarps = Config::kThreads / 32;
  static_assert(kDepth % 8 == 0 && kRows % (kChunkFloats * kWarps) == 0);

  // Starts copies of 4 bytes each. A warp copies 8 columns of 4 rows. These are full 32-byte sectors in memory. In a
  // tile with 4 floats of padding, the stores use every bank once. Rows of the tensor are permuted within each group of
  // 4 kLanes rows: chunk l of a tile's row holds the rows l, l + kLanes, l + 2 kLanes and l + 3 kLanes of the group.
  // kLanes = 1 keeps the order of rows.
  template <int kLanes>
  static __device__ __forceinline__ void start(int smem_offset, const float* gmem, int64 row_stride, int64 num_rows) {
    const int rows_left = static_cast<int>(min(num_rows, int64{kRows}));
    const int col = threadIdx.x % 32 / 4;
    const int i = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < kRows / kChunkFloats; first += kWarps) {
      const int chunk = first + threadIdx.x / 32;
      const int row = chunk / kLanes * kLanes * kChunkFloats + chunk % kLanes + i * kLanes;
      const float* source = gmem + row * row_stride + col;
      const int place = smem_offset + Tile::offset(col, chunk * kChunkFloats) + i * 4;
#pragma unroll
      for (int depth = 0; depth < kDepth; depth += 8) {
        const bool exists = row < rows_left && (Config::kHeadDim % 8 == 0 || depth + col < Config::kHeadDim);
        copy_async<4>(place + depth * Tile::kRowBytes, source + depth, exists);
      }
    }
  }
};

}  // namespace attend
