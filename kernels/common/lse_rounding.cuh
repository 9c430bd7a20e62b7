// The sum of a row's exp(s - lse), which is 1 for an exact lse, where lse is so large that its rounding shows.
//
// Below a bias of -1e9 on all keys of a row, lse is a multiple of 64: log n is lost in it, and p = exp(s - lse) and all
// gradients would be n times too large. Such rows are rare and known before the backward pass proper, so the kernel
// that prepares it sums them once more. Config::kHasLseRounding says for which problems: those with a bias or ALiBi, as
// products alone round as coarsely as lse does, and not parts of a larger one, whose keys are not all of a row's.
#pragma once

#include "args.cuh"
#include "element.cuh"
#include "head_matrix.cuh"
#include "numbers.cuh"
#include "score_rules.cuh"
#include "warp_reduce.cuh"

namespace attend {

// Half a unit in the last place of an lse from here on is a factor of p of 1 + 2^-15 and more.
constexpr float kCoarseLse = 1024.0f;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_coarse(float lse) {
  return (lse >= kCoarseLse || lse <= -kCoarseLse) && lse < kInfinity && lse > -kInfinity;
}

// log2 of sum_j exp(s_j - lse) of a row; 0 where lse is not coarse, where the row adds nothing to any gradient, and
// where the sum is not explained by lse's rounding: lse then is of other keys too. By kLanes lanes that share a row, in
// warps that are all here; a row beyond the sequence has no key.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ float lse_log2_sum(const BackwardArgs& base, const OptionArgs& options,
                                                            const SequenceSpan& span, uint32 sequence, uint32 head,
                                                            int64 row, float lse) {
  using Element = ElementOf<Config>;
  using Storage = typename Element::Storage;
  constexpr float kLargestRounding = 0x1p-22f;  // relative, forward's own roundings included
  const bool exists = row < span.seqlen_q && is_coarse(lse);
  if (!__any_sync(kAllLanes, exists)) return 0.0f;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float largest_gradient = 0.0f, sum = 0.0f;
  if (exists) {
    const auto* dout =
        static_cast<const Storage*>(base.dout) + base.dout_stride.offset(span.batch, head, span.q_begin + row);
    for (int col = lane; col < Config::kHeadDimV; col += kLanes) {
      largest_gradient = fmaxf(largest_gradient, fabsf(Element::to_float(dout[col])));
    }
    if (base.dlse != nullptr) largest_gradient = 1.0f;
  }
  largest_gradient = warp_max<kLanes>(largest_gradient);
  if (exists && largest_gradient > 0.0f) {
    const auto rules = ScoreRules<Config>::make(options, base.scale, span, sequence, head, base.num_heads_q);
    const KeyRange seen = rules.window.row(row);
    const auto* q = static_cast<const Storage*>(base.q) + base.q_stride.offset(span.batch, head, span.q_begin + row);
    const auto* k =
        static_cast<const Storage*>(base.k) + base.k_stride.offset(span.batch, key_head_of(base, head), span.k_begin);
#pragma unroll 1
    for (int64 key = seen.begin + lane; key < seen.end; key += kLanes) {
      float product = 0.0f;
#pragma unroll 4
      for (int col = 0; col < Config::kHeadDim; ++col) {
        product = fmaf(Element::to_float(q[col]), Element::to_float(k[key * base.k_stride.row + col]), product);
      }
      if constexpr (Config::kNegateScores) product = -product;
      float slope;
      const float score = rules.tile(row, key).template score<false>(product, 0, 0, slope);
      sum += exp2_fast((score - lse) * kLog2E);
    }
  }
  sum = warp_sum<kLanes>(sum);
  if (!exists || !(largest_gradient > 0.0f)) return 0.0f;
  const float log2_sum = log2f(sum);
  return fabsf(log2_sum) * kLn2 <= kLargestRounding * fabsf(lse) ? log2_sum : 0.0f;  // NaN: 0
}

}  // namespace attend
