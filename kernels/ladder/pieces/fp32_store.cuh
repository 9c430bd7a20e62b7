// Stores a thread's tile of float32 results to memory. Rung 08 uses it.
#pragma once

#include "../../common/portable.cuh"
#include "../../tiles/extents.cuh"
#include "../../tiles/fp32_tile.cuh"

namespace attend {

enum class Fp32StoreMode {
  kOverwrite,
  kAdd,  // adds to memory by a reduction in the L2 cache, for which no thread waits
};

template <class Config, Fp32StoreMode kMode>
struct Fp32Store {
  static constexpr bool kAdds = kMode == Fp32StoreMode::kAdd;
#if __CUDA_ARCH__ >= 900
  static constexpr bool kAddsVectors = kAdds && Config::kAligned;
#else
  static constexpr bool kAddsVectors = false;
#endif

  // Stores four neighbouring numbers, or only the first num_cols of them if there are fewer.
  static __device__ __forceinline__ void chunk(float* memory, const float4& value, int num_cols) {
    const float numbers[kChunkFloats] = {value.x, value.y, value.z, value.w};
    if constexpr (kAddsVectors) {
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "f"(value.x), "f"(value.y),
                   "f"(value.z), "f"(value.w)
                   : "memory");
    } else if constexpr (!kAdds && Config::kAligned) {
      *reinterpret_cast<float4*>(memory) = value;
    } else {
#pragma unroll
      for (int c = 0; c < kChunkFloats; ++c) {
        if (c >= num_cols) break;
        if constexpr (kAdds) {
          atomicAdd(memory + c, numbers[c]);
        } else {
          memory[c] = numbers[c];
        }
      }
    }
  }

  // Stores factor * numbers to the thread's columns of a row that begins at `memory`.
  template <int kDims>
  static __device__ __forceinline__ void row(const float (&numbers)[kDims], float factor, float* memory,
                                             ChunksOfLane at) {
#pragma unroll
    for (int d = 0; d < kDims; d += kChunkFloats) {
      const int col = at.column(d);
      if (col >= Config::kHeadDim) continue;
      const float4 value =
          make_float4(numbers[d] * factor, numbers[d + 1] * factor, numbers[d + 2] * factor, numbers[d + 3] * factor);
      chunk(memory + col, value, Config::kHeadDim - col);
    }
  }

  // Stores the thread's neighbouring rows. Only the first num_rows of them exist.
  template <class Rows>
  static __device__ __forceinline__ void rows(const Rows& numbers, float factor, float* memory, int64 row_stride,
                                              int64 num_rows, ChunksOfLane at) {
#pragma unroll
    for (int i = 0; i < kRowsOf<Rows>; ++i) {
      if (i >= num_rows) break;
      row(numbers[i], factor, memory + i * row_stride, at);
    }
  }
};

}  // namespace attend
