// Merges a row's attention over some keys with the row's attention over other keys, given the lse of each.
//
//   lse = log(exp(before) + exp(part)),   o = exp(before - lse) o_before + exp(part - lse) o_part
//
// The weights add up to 1 even if lse is rounded. So o does not drift as more parts are merged.
// Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1.
#pragma once

#include "../common/numbers.cuh"

namespace attend {

// The merged lse, and the weights of the two parts. A part with lse = -inf saw no key, and its weight is 0. A NaN makes
// the result NaN.
struct MergedLse {
  float lse;
  float before;  // weight of the result of earlier parts, whose o may be undefined if its lse is -inf
  float part;    // weight of the part that is merged into this result
};

[[nodiscard]] ATTEND_HOST_DEVICE MergedLse merged(float before, float part) {
  if (before == -kInfinity) return {part, 0.0f, 1.0f};
  if (part == -kInfinity) return {before, 1.0f, 0.0f};
  const bool part_is_low = part < before;
#if defined(__CUDA_ARCH__)
  const float ratio = expf(part_is_low ? part - before : before - part);  // ratio of the smaller weight to the larger
  const float lse = (part_is_low ? before : part) + log1pf(ratio);
#else
  const float ratio = __builtin_expf(part_is_low ? part - before : before - part);
  const float lse = (part_is_low ? before : part) + __builtin_log1pf(ratio);
#endif
  const float high = 1.0f / (1.0f + ratio);
  const float low = ratio * high;
  return part_is_low ? MergedLse{lse, high, low} : MergedLse{lse, low, high};
}

}  // namespace attend
