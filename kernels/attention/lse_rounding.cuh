// Sums exp(s - lse) over the keys of a row, if lse is so large that its rounding matters. With an exact lse the sum
// would be 1.
//
// For example, if a bias below -1e9 is added to all n keys of a row, float32 rounds lse to a multiple of 64. Then log n
// is lost in the rounding of lse, and p = exp(s - lse) and all gradients would be n times too large. Such rows are
// rare, and are known before the main backward kernel runs. So the kernel that prepares the backward pass computes the
// sums of these rows again. Config::kHasLseRounding enables this for problems with a bias, ALiBi or a custom score
// function. Without these modifications, products as large as such an lse are rounded as coarsely as lse. The constant
// is false for parts of a larger problem, because such a part does not have all keys of a row.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "block_mask.cuh"
#include "coarse_lse.cuh"
#include "head_matrix.cuh"
#include "row_end.cuh"
#include "score_rules.cuh"

namespace attend {

// Largest |scale q.k| among the keys that contribute to the sum, and the sum of exp(s - lse).
struct LseSum {
  float product, sum;
};

// Returns the LseSum of one row over a lane's share of the keys.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ LseSum lse_sum(const BackwardArgs& base, const OptionArgs& options,
                                                        const SequenceSpan& span, uint32 sequence, uint32 head,
                                                        int64 row, float lse) {
  using Storage = typename ElementOf<Config>::Storage;
  constexpr int kRun =
      Config::kAligned && Config::kHeadDim % kVectorElements<Config> == 0 ? kVectorElements<Config> : 1;
  constexpr float kAddsNothing = -32.0f;
  const auto rules = ScoreRules<Config>::make(options, base.scale, span, sequence, head, base.num_heads_q);
  const KeyRange seen = rules.window.row(row);
  const auto* q = static_cast<const Storage*>(base.q) + span.query_offset(base.q_stride, head, row);
  const auto* k = static_cast<const Storage*>(base.k) + span.keys().offset(base.k_stride, key_head_of(base, head), 0);
  LseSum result = {};
#pragma unroll 1
  for (int64 key = seen.begin + static_cast<int>(threadIdx.x) % kLanes; key < seen.end; key += kLanes) {
    if constexpr (has_block_mask<Config>()) {
      const int group = static_cast<int>(base.num_heads_q / base.num_heads_k);
      if (!sees_pair<Config>(options.block_mask, static_cast<int>(sequence), static_cast<int>(head) / group,
                             static_cast<int>(head) % group, static_cast<int>(row), static_cast<int>(key))) {
        continue;
      }
    }
    if (!rules.map.sees(row, key)) continue;
    float product = 0.0f;
#pragma unroll 1
    for (int col = 0; col < Config::kHeadDim; col += kRun) {
      float of_q[kRun], of_k[kRun];
      load_elements<Config>(of_q, q + col);
      load_elements<Config>(of_k, k + key * base.k_stride.row + col);
#pragma unroll
      for (int i = 0; i < kRun; ++i) product = fmaf(of_q[i], of_k[i], product);
    }
    if constexpr (Config::kNegateScores) product = -product;
    const auto tile = rules.tile(row, key);
    float above, slope;
    if constexpr (Config::kFusesScores) {
      above = tile.fused_score(product, 0, 0) - lse;
    } else {
      above = tile.template score<true>(product, 0, 0, slope) - lse;
    }
    result.sum += exp2_fast(above * kLog2E);
    if (above > kAddsNothing) result.product = fmaxf(result.product, fabsf(product * base.scale));
  }
  return result;
}

// Returns log2 of the sum of exp(s - lse) over a row, including the logit of its head (row_end.cuh). The result is 0 in
// three cases:
// - lse is not coarse.
// - The row contributes to no gradient.
// - The sum differs from 1 by more than the rounding of lse explains, because lse covers other keys too.
//
// kLanes lanes share a row, and all lanes of the warp must call it. A row beyond the sequence has no key.
//
// If kFusesScores is set, tensor cores have added the products in a different order and truncated the sums, which
// base.scale compensates. The result is also 0 if this difference explains why the sum differs from 1.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ float lse_log2_sum(const BackwardArgs& base, const OptionArgs& options,
                                                            const SequenceSpan& span, uint32 sequence, uint32 head,
                                                            int64 row, float lse) {
  using Element = ElementOf<Config>;
  // Relative error of a product.
  constexpr float kProductError = Config::kFusesScores ? 0x1p-22f * (1 + Config::kHeadDim / 64) : 0.0f;
  const bool exists = row < span.seqlen_q && is_coarse(lse);
  if (!__any_sync(kAllLanes, exists)) return 0.0f;
  float largest_gradient = 0.0f;
  if (exists) {
    const auto* dout =
        static_cast<const typename Element::Storage*>(base.dout) + span.query_offset(base.dout_stride, head, row);
    for (int col = static_cast<int>(threadIdx.x) % kLanes; col < Config::kHeadDimV; col += kLanes) {
      largest_gradient = fmaxf(largest_gradient, fabsf(Element::to_float(dout[col])));
    }
    if (base.dlse != nullptr) largest_gradient = 1.0f;
  }
  largest_gradient = warp_max<kLanes>(largest_gradient);
  LseSum of_row = {};
  if (exists && largest_gradient > 0.0f) {
    of_row = lse_sum<Config, kLanes>(base, options, span, sequence, head, row, lse);
  }
  of_row = {warp_max<kLanes>(of_row.product), warp_sum<kLanes>(of_row.sum)};
  if (options.row_logits != nullptr) of_row.sum += exp2_fast((row_logit(options, sequence, head) - lse) * kLog2E);
  if (!exists || !(largest_gradient > 0.0f)) return 0.0f;
  const float log2_sum = log2f(of_row.sum);
  const float off = fabsf(log2_sum) * kLn2;
  return off <= kLargestLseError * fabsf(lse) && off > kProductError * of_row.product ? log2_sum : 0.0f;  // NaN gives 0
}

}  // namespace attend
