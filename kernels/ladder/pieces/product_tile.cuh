// The textbook matrix product of a block, which computes a 64 x 64 tile of C = A B. Shared memory holds 16 steps of the
// depth at a time. Each of 256 threads has 4 x 4 elements of C in registers.
//
// Callers pass functions that fetch elements. So the same product computes q k^T, P v and P^T dout, with masks and
// scales.
#pragma once

#include "../../common/portable.cuh"
#include "ladder_shapes.cuh"

namespace attend {

struct ProductTile : ProductTileShape {
  static constexpr int kThreadSize = 4;  // number of rows, and of columns, of C in a thread. They are 16 apart

  struct SharedStorage {
    float a[kDepth][kRow];  // a[step][row of C]
    float b[kDepth][kRow];  // b[step][column of C]
  };

  float c[kThreadSize][kThreadSize] = {};

  // These functions return the row and the column of c[i][j] in the tile.
  [[nodiscard]] static __device__ __forceinline__ int row(int i) { return static_cast<int>(threadIdx.x) / 16 + 16 * i; }
  [[nodiscard]] static __device__ __forceinline__ int col(int j) { return static_cast<int>(threadIdx.x) % 16 + 16 * j; }

  // Sets tile[step][i] = get(i, step), for an operand whose steps are neighbours in memory. Neighbouring threads load
  // neighbouring steps.
  template <class Get>
  static __device__ __forceinline__ void fill_along_depth(float (&tile)[kDepth][kRow], const Get& get) {
#pragma unroll
    for (int n = 0; n < kSize * kDepth / kThreads; ++n) {
      const int at = n * kThreads + static_cast<int>(threadIdx.x);
      tile[at % kDepth][at / kDepth] = get(at / kDepth, at % kDepth);
    }
  }

  // Does the same for an operand whose rows or columns of C are neighbours in memory.
  template <class Get>
  static __device__ __forceinline__ void fill_across_depth(float (&tile)[kDepth][kRow], const Get& get) {
#pragma unroll
    for (int n = 0; n < kSize * kDepth / kThreads; ++n) {
      const int at = n * kThreads + static_cast<int>(threadIdx.x);
      tile[at / kSize][at % kSize] = get(at % kSize, at / kSize);
    }
  }

  // Computes c += A B over the steps [begin, end) of the depth. fill(shared, step) must load kDepth steps, from `step`
  // on, into shared memory, and store zeros beyond the matrices and beyond `end`.
  template <class Fill>
  __device__ __forceinline__ void multiply(SharedStorage& shared, int64 begin, int64 end, const Fill& fill) {
    for (int64 step = begin; step < end; step += kDepth) {
      __syncthreads();  // waits until all threads have finished with the previous steps, which may then be overwritten
      fill(shared, step);
      __syncthreads();  // waits until all elements have arrived; they may then be read
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float a_frag[kThreadSize], b_frag[kThreadSize];
#pragma unroll
        for (int i = 0; i < kThreadSize; ++i) a_frag[i] = shared.a[k][row(i)];
#pragma unroll
        for (int j = 0; j < kThreadSize; ++j) b_frag[j] = shared.b[k][col(j)];
#pragma unroll
        for (int i = 0; i < kThreadSize; ++i) {
#pragma unroll
          for (int j = 0; j < kThreadSize; ++j) c[i][j] = fmaf(a_frag[i], b_frag[j], c[i][j]);
        }
      }
    }
  }

  // Calls store(row, column, value) for each of this thread's elements.
  template <class Store>
  __device__ __forceinline__ void for_each(const Store& store) const {
#pragma unroll
    for (int i = 0; i < kThreadSize; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadSize; ++j) store(row(i), col(j), c[i][j]);
    }
  }
};

}  // namespace attend
