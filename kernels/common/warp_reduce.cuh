// The largest value and the sum over the lanes of a warp, or of each aligned part of it: every lane gets the result.
#pragma once

#include "numbers.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kWarpThreads = 32;
constexpr uint32 kAllLanes = 0xFFFFFFFFu;

// NaN counts as -inf, as in fmaxf: whoever sums exp(s - max) afterwards meets the NaN again.
template <int kLanes = kWarpThreads>
[[nodiscard]] __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

template <int kLanes = kWarpThreads>
[[nodiscard]] __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// What is subtracted from the scores of a row before the exponential: their maximum. A row without any has -inf, and
// -inf - -inf is NaN: 0 serves it as well, exp(-inf - 0) is 0.
[[nodiscard]] __device__ __forceinline__ float finite_max(float row_max) {
  return row_max == -kInfinity ? 0.0f : row_max;
}

// 1 / l, and 0 for the row that saw no key.
[[nodiscard]] __device__ __forceinline__ float inverse_or_zero(float row_sum) {
  return row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
}

}  // namespace attend
