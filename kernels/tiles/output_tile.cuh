// Writes o from accumulators to global memory in 16-byte stores. Each lane holds only 2 neighbouring elements of a row,
// so the rows are assembled in shared memory first.
#pragma once

#include "../common/element.cuh"
#include "../common/portable.cuh"
#include "accumulator_mask.cuh"
#include "smem_tile.cuh"

namespace attend {

// Multiplies a warp's accumulators (accumulator_mask.cuh) by the factors, rounds them, and writes them as 16 rows of
// the tile, from `row` on. `tile` has the members chunk and index() of smem_tile.cuh. If it is swizzled, the 4-byte
// stores of the 32 lanes access 32 different banks.
template <class Element, int kCount>
__device__ __forceinline__ void write_accumulators(auto& tile, int row, const float (&value)[kCount],
                                                   const float (&factor)[kRowsOfThread]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int h = i / 2 % 2;
    uint4& chunk = tile.chunk[tile.index(row + lane / 4 + h * kRowHalf, i / 4)];
    reinterpret_cast<uint32*>(&chunk)[lane % 4] = Element::pack(value[i] * factor[h], value[i + 1] * factor[h]);
  }
}

// Stores kRows rows of the tile, from `row` on, to global memory. One warp calls it. Only the first `rows` of them
// exist. row_stride is in elements.
template <int kRows, class Tile>
__device__ __forceinline__ void store_tile_rows(const Tile& tile, int row, void* destination, int64 row_stride,
                                                int64 rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = lane; i < kRows * Tile::kChunks; i += 32) {
    const int r = i / Tile::kChunks;
    const int column = i % Tile::kChunks;
    if (r >= rows) continue;
    auto* to = static_cast<char*>(destination) + r * row_stride * kTileElementBytes + column * kChunkBytes;
    *reinterpret_cast<uint4*>(to) = tile.chunk[Tile::index(row + r, column)];
  }
}

}  // namespace attend
