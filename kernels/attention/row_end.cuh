// Computes o and lse of a query row from the sums over its keys. If kAddsToSum is set, the head has a logit, whose
// exponential is added to the row sum. The logit has no row of v, so it only makes o smaller.
//
// The logit is merged like another part of the row's keys (merge_rows.cuh), so its magnitude is not limited.
// Source: OpenAI, gpt-oss-120b and gpt-oss-20b model card (2025), which adds a learned number of each head to the
// denominator of the softmax. Miller, Attention is off by one (2023), uses a logit of 0.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"
#include "../common/portable.cuh"
#include "merge_rows.cuh"
#include "score_mods.cuh"

namespace attend {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns the logit of a head of a sequence.
[[nodiscard]] __device__ __forceinline__ float row_logit(const OptionArgs& options, uint32 sequence, uint32 head) {
  const int64 at = sequence * options.row_logit_sequence_stride + head * options.row_logit_head_stride;
  switch (static_cast<ElementType>(options.row_logits_element)) {
    case ElementType::kF32:
      return static_cast<const float*>(options.row_logits)[at];
    case ElementType::kF16:
      return Float16::to_float(static_cast<const Bits16*>(options.row_logits)[at]);
    case ElementType::kBF16:
      return BFloat16::to_float(static_cast<const Bits16*>(options.row_logits)[at]);
  }
  return -kInfinity;
}

// Values that are needed to complete o and lse of a row, for one query head of one sequence.
template <class Config>
struct RowEnd {
  float kept;   // factor by which entries of p that are not dropped are multiplied
  float logit;  // the logit, used if kAddsToSum is set. -inf adds nothing

  [[nodiscard]] static __device__ __forceinline__ RowEnd of(const OptionArgs& options, uint32 sequence, uint32 head) {
    RowEnd end = {kept_scale<Config>(options), -kInfinity};
    if constexpr (Score<Config>::kAddsToSum) end.logit = row_logit(options, sequence, head);
    return end;
  }

  // Returns the row's lse, given the lse over its keys, which is -inf if the row sees no key.
  [[nodiscard]] __device__ __forceinline__ float lse(float of_keys) const {
    if constexpr (Score<Config>::kAddsToSum) return merged(of_keys, logit).lse;
    return of_keys;
  }

  // Returns the factor that turns the sum of p v into o. p is relative to the row maximum. inverse_sum is 1 / sum p, or
  // 0 if the row sees no key.
  [[nodiscard]] __device__ __forceinline__ float factor(float inverse_sum, float lse_of_keys) const {
    if constexpr (Score<Config>::kAddsToSum) return inverse_sum * kept * merged(lse_of_keys, logit).before;
    return inverse_sum * kept;
  }
};

#endif

}  // namespace attend
