// Stores gradients from accumulators to memory. Also loads and stores 16-byte pieces of rows of 16-bit elements.
#pragma once

#include "../common/element.cuh"
#include "../common/portable.cuh"
#include "../tiles/smem_tile.cuh"
#include "quad_transpose.cuh"

namespace attend {

constexpr int kPieceBytes = 16;  // bytes of the widest load and store
constexpr int kPieceElements = kPieceBytes / int{sizeof(Bits16)};

// Returns elements [column, column + 8) of a row of kHeadDim elements. Elements beyond the end of the row are zero.
template <int kHeadDim>
[[nodiscard]] __device__ __forceinline__ uint4 load_piece(const Bits16* row, int column) {
  if (column + kPieceElements <= kHeadDim) return *reinterpret_cast<const uint4*>(row + column);
  uint32 pair[4] = {};
  if constexpr (kHeadDim % kPieceElements != 0) {
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) {
      if (column + i < kHeadDim) pair[i / 2] |= static_cast<uint32>(row[column + i]) << (i % 2 * 16);
    }
  }
  return {pair[0], pair[1], pair[2], pair[3]};
}

template <int kHeadDim>
__device__ __forceinline__ void store_piece(Bits16* row, int column, const uint32 (&pair)[4]) {
  if (column + kPieceElements <= kHeadDim) {
    *reinterpret_cast<uint4*>(row + column) = {pair[0], pair[1], pair[2], pair[3]};
  } else if constexpr (kHeadDim % kPieceElements != 0) {
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) {
      if (column + i < kHeadDim) row[column + i] = static_cast<Bits16>(pair[i / 2] >> (i % 2 * 16));
    }
  }
}

// Multiplies a warp's 16 rows of an accumulator by `factor`, and stores them as rows of 16-bit elements. Each lane
// stores 16 bytes of a row. `x` is the accumulator, which has at least kHeadDim columns. `to` points to the first of
// the 16 rows, and only num_rows rows exist.
template <class Element, int kHeadDim>
__device__ __forceinline__ void store_accumulator(const float* x, float factor, Bits16* to, int64 row_stride,
                                                  int num_rows) {
  static_assert(sizeof(typename Element::Storage) == sizeof(Bits16));
  // The lane is recomputed here, once per key block, so that it occupies no register before.
  const int lane = static_cast<int>(recomputed(threadIdx.x) % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    Bits16* const to_row = to + row * row_stride;
#pragma unroll
    for (int column = 0; column < kHeadDim; column += 32) {
      uint32 r[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = (column / 8 + j) * 4 + h * 2;
        r[j] = Element::pack(x[i] * factor, x[i + 1] * factor);
      }
      transpose_quad(r);
      if (row < num_rows) store_piece<kHeadDim>(to_row, column + lane % 4 * kPieceElements, r);
    }
  }
}

// Multiplies a warp's 16 rows of an accumulator by `factor` and adds them to rows of floats. If `overwrites` is set,
// overwrites these rows instead. Each lane accesses 8 bytes of a row, so the lanes of a quad access complete 32-byte
// sectors. The row stride must be even.
template <int kHeadDim>
__device__ __forceinline__ void add_accumulator(const float* x, float factor, float* to, int64 row_stride, int num_rows,
                                                bool overwrites) {
  static_assert(kHeadDim % 2 == 0);
  constexpr int kTile = 8;  // columns of a group, of which each lane of a quad has two
  const int lane = static_cast<int>(recomputed(threadIdx.x) % 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    if (row >= num_rows) continue;
    float* const to_row = to + row * row_stride + lane % 4 * 2;
    // All loads are issued before the first store.
    float2 before[(kHeadDim + kTile - 1) / kTile] = {};
#pragma unroll
    for (int column = 0; column < kHeadDim; column += kTile) {
      if (overwrites || column + lane % 4 * 2 >= kHeadDim) continue;
      before[column / kTile] = *reinterpret_cast<const float2*>(to_row + column);
    }
#pragma unroll
    for (int column = 0; column < kHeadDim; column += kTile) {
      if (column + lane % 4 * 2 >= kHeadDim) continue;
      const int i = column / 2 + h * 2;
      const float2 sum = before[column / kTile];
      *reinterpret_cast<float2*>(to_row + column) =
          make_float2(fmaf(x[i], factor, sum.x), fmaf(x[i + 1], factor, sum.y));
    }
  }
}

// Stores rows of a gradient, starting `at` elements after the start of `tensor`. If kAddsToOutputs is set, adds to the
// rows in memory unless `overwrites` is set.
template <class Config, int kHeadDim>
__device__ __forceinline__ void store_gradient(const float* x, float factor, void* tensor, int64 at, int64 row_stride,
                                               int num_rows, bool overwrites) {
  if constexpr (Config::kAddsToOutputs) {
    add_accumulator<kHeadDim>(x, factor, static_cast<float*>(tensor) + at, row_stride, num_rows, overwrites);
  } else {
    store_accumulator<ElementOf<Config>, kHeadDim>(x, factor, static_cast<Bits16*>(tensor) + at, row_stride, num_rows);
  }
}

}  // namespace attend
