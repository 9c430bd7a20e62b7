// Adds what pairs of a row and a key contribute to the gradients of captured tensors.
//
//   d element = sum of ds * df / d element over all pairs that read it
//
// ds is the gradient of the score function's value f. The order of the additions is not fixed.
#pragma once

#include "../common/warp_reduce.cuh"
#include "custom_score.cuh"

namespace attend {

// Adds the lanes' values to a gradient. If all lanes add to the same element, the warp adds only once.
__device__ __forceinline__ void add_together(float* gradient, int64 offset, float value) {
  const int64 first = __shfl_sync(kAllLanes, offset, 0);
  if (__all_sync(kAllLanes, offset == first)) {
    const float sum = warp_sum<kWarpThreads>(value);
    if (threadIdx.x % kWarpThreads == 0 && sum != 0.0f) atomicAdd(gradient + first, sum);
  } else if (value != 0.0f) {
    atomicAdd(gradient + offset, value);
  }
}

// Adds what each lane's pair contributes. All lanes of the warp must call it, with one pair in each lane. `gradients`
// has one contiguous array for each captured tensor, or null if its gradient is not requested. If ds is 0, as for a
// hidden score, the pair adds nothing, even if the derivative is not finite. The function is instantiated only if Code
// has gradients.
template <class Code = CustomScoreCode>
__device__ __forceinline__ void add_captured_shares(const ScorePoint<float>& at, const CapturedTensor* captured,
                                                    float* const* gradients, float ds) {
  Code::gradients(at, captured, [&](int capture, int64 offset, float derivative) {
    float* const gradient = gradients[capture];
    if (gradient == nullptr) return;
    add_together(gradient, offset, ds == 0.0f ? 0.0f : ds * derivative);
  });
}

}  // namespace attend
