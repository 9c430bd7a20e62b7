// The sum of a row's exp(s - lse), which is 1 for an exact lse, where lse is so large that its rounding shows.
//
// Below a bias of -1e9 on all keys of a row, lse is a multiple of 64: log n is lost in it, and p = exp(s - lse) and all
// gradients would be n times too large. Such rows are rare and known before the backward pass proper, so the kernel
// that prepares it sums them once more. Config::kHasLseRounding says for which problems: those with a bias, ALiBi or a
// function of the caller's, as products alone round as coarsely as lse does, and not parts of a larger one, whose keys
// are not all of a row's.
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

// A row's largest |scale q.k| as far as it adds to the sum, and the sum of exp(s - lse).
struct LseSum {
  float product, sum;
};

// Of one row, a lane's share of its keys.
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

// log2 of sum_j exp(s_j - lse) of a row, with the logit of its head (row_end.cuh) in the sum. 0 where lse is not
// coarse, where the row adds nothing to any gradient, and where the sum is not explained by lse's rounding: lse then is
// of other keys too. By kLanes lanes that share a row, in warps that are all here; a row beyond the sequence has no
// key.
//
// Products on tensor cores (kFusesScores) are added up in another order than here, and their sums are cut off, for
// which base.scale makes up: 0 as well if that explains the sum.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ float lse_log2_sum(const BackwardArgs& base, const OptionArgs& options,
                                                            const SequenceSpan& span, uint32 sequence, uint32 head,
                                                            int64 row, float lse) {
  using Element = ElementOf<Config>;
  constexpr float kProductError = Config::kFusesScores ? 0x1p-22f * (1 + Config::kHeadDim / 64) : 0.0f;  // relative
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
  return off <= kLargestLseError * fabsf(lse) && off > kProductError * of_row.product ? log2_sum : 0.0f;  // NaN: 0
}

}  // namespace attend
