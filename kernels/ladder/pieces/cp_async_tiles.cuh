// Copies tiles to shared memory by cp.async while the block computes.
#pragma once

#include "../../common/portable.cuh"
#include "../../isa/cp_async.cuh"
#include "../../isa/smem_address.cuh"
#include "../../tiles/smem_tile.cuh"

namespace attend {

// Copies one thread's part of each tile: one column of chunks, in every kRowStep-th row. The tiles are adjacent in
// global memory.
template <int kThreads, class Tile>
class CpAsyncTileLoader {
 public:
  // `first` is the place of the first tile in shared memory. The argument row_stride is in elements.
  __device__ __forceinline__ CpAsyncTileLoader(Tile& first, const void* source, int64 row_stride)
      : source_(static_cast<const char*>(source) + row() * row_stride * kTileElementBytes + column() * kChunkBytes),
        first_(smem_address(first.chunk)) {}

  // Starts to copy the next tile to the address that lies `offset` bytes behind the first tile. Only the first `rows`
  // rows exist. The others become zero, because a NaN in a missing key would make 0 * v NaN.
  __device__ __forceinline__ void load(uint32 offset, int64 row_stride, int rows) {
    const int64 step = kRowStep * kTileElementBytes * row_stride;
    const uint32 target = first_ + offset + Tile::index(row(), column()) * kChunkBytes;
    if (rows >= Tile::kRows) {
#pragma unroll
      for (int i = 0; i < Tile::kRows; i += kRowStep, source_ += step) cp_async_16(target + i * kRowBytes, source_);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::kRows; i += kRowStep, source_ += step) {
        cp_async_16(target + i * kRowBytes, source_, recomputed_thread() / Tile::kChunks + i < rows);
      }
    }
  }

 private:
  static constexpr int kRowStep = kThreads / Tile::kChunks;
  static constexpr int kRowBytes = Tile::kChunks * kChunkBytes;
  static_assert(kThreads % Tile::kChunks == 0 && Tile::kRows % kRowStep == 0, "all threads have as much to do");
  static_assert(kRowStep % 8 == 0, "a thread's rows are swizzled alike: their places are kRowBytes * kRowStep apart");
  static __device__ __forceinline__ int row() {
    return static_cast<int>(threadIdx.x) / Tile::kChunks;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % Tile::kChunks;
  }

  const char* source_;
  uint32 first_;
};

}  // namespace attend
