// From a thread's tile of float32 results to memory: written, or added to what is there.
#pragma once

#include "../../common/portable.cuh"
#include "../../tiles/fp32_tile.cuh"

namespace attend {

// Four numbers, those below num_cols.
template <class Config, bool kAdd>
__device__ __forceinline__ void write_chunk(float* memory, const float4& value, int num_cols) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kWideAdd = true;
#else
  constexpr bool kWideAdd = false;
#endif
  const float numbers[kChunkFloats] = {value.x, value.y, value.z, value.w};
  if constexpr (kAdd && kWideAdd && Config::kAligned) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(memory), "f"(value.x), "f"(value.y),
                 "f"(value.z), "f"(value.w)
                 : "memory");
  } else if constexpr (!kAdd && Config::kAligned) {
    *reinterpret_cast<float4*>(memory) = value;
  } else {
#pragma unroll
    for (int c = 0; c < kChunkFloats; ++c) {
      if (c >= num_cols) break;
      if constexpr (kAdd) {
        atomicAdd(memory + c, numbers[c]);  // the result is unused: a reduction in the L2 cache, nobody waits
      } else {
        memory[c] = numbers[c];
      }
    }
  }
}

// factor * numbers to columns of a row, which begins at `memory`: chunk thread_x of every kThreadsX chunks.
template <class Config, bool kAdd, int kThreadsX, int kDims>
__device__ __forceinline__ void write_row(const float (&numbers)[kDims], float factor, float* memory, int thread_x) {
#pragma unroll
  for (int d = 0; d < kDims; d += kChunkFloats) {
    const int col = (d / kChunkFloats * kThreadsX + thread_x) * kChunkFloats;
    if (col >= Config::kHeadDim) continue;
    const float4 value =
        make_float4(numbers[d] * factor, numbers[d + 1] * factor, numbers[d + 2] * factor, numbers[d + 3] * factor);
    write_chunk<Config, kAdd>(memory + col, value, Config::kHeadDim - col);
  }
}

// The thread's rows, which are neighbours, as far as there are num_rows.
template <class Config, bool kAdd, int kThreadsX, int kM, int kDims>
__device__ __forceinline__ void write_rows(const float (&numbers)[kM][kDims], float factor, float* memory,
                                           int64 row_stride, int64 num_rows, int thread_x) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    if (i >= num_rows) break;
    write_row<Config, kAdd, kThreadsX>(numbers[i], factor, memory + i * row_stride, thread_x);
  }
}

}  // namespace attend
