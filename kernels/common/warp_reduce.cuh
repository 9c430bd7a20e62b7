// Maximum and sum over the lanes of a warp, or over each aligned group of kLanes lanes. Every lane gets the result.
#pragma once

#include "portable.cuh"

namespace attend {

constexpr int kWarpThreads = 32;
constexpr uint32 kAllLanes = 0xFFFFFFFFu;

// Returns the maximum. NaN is treated as -inf, as in fmaxf. A later sum of exp(s - max) becomes NaN anyway.
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

}  // namespace attend
