// Computes p of a 64 x 64 tile of the sm90 backward pass for scores with a transform. Also hides scores by a block
// mask.
#pragma once

#include "../attention/score_transform.cuh"
#include "../common/portable.cuh"
#include "sm90_backward_scores.cuh"

namespace attend {

// Replaces each score by the transform's reciprocal r.
__device__ __forceinline__ void make_reciprocals(float (&s)[32], const ReciprocalTransform& transform) {
#pragma unroll
  for (float& x : s) x = transform.r(x);
}

// Computes p from the reciprocals r, and p times a quarter of the transform's derivative. Both results are packed.
template <class Element>
__device__ __forceinline__ void probabilities_of_reciprocals(uint32 (&p)[16], uint32 (&sloped_p)[16],
                                                             const float (&reciprocals)[32], const float (&lse)[16],
                                                             const ReciprocalTransform& transform) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float of_pair[2], sloped[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float r = reciprocals[2 * i + b];
      of_pair[b] = transform.probability(r, lse[backward_statistic(2 * i + b)]);
      sloped[b] = of_pair[b] * ReciprocalTransform::quarter_slope(r);
    }
    p[i] = Element::pack(of_pair[0], of_pair[1]);
    sloped_p[i] = Element::pack(sloped[0], sloped[1]);
  }
}

// Sets the scores whose bit in `seen` is 0 to `hidden`.
__device__ __forceinline__ void hide_unseen(float (&s)[32], uint32 seen, float hidden) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if ((seen >> i & 1) == 0) s[i] = hidden;
  }
}

}  // namespace attend
