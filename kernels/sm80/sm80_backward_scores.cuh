// Computes p and ds from the products of tiles, in a warp's registers:
//
//   p = exp(s - lse)    ds = p (drop(dout v^T) - delta)    delta = rowsum(dout * o) - dlse
//
// The exponential uses base 2. log2_sum is subtracted from its exponent (lse_rounding.cuh).
//
// p is stored multiplied by 2^kShift. Without this factor, rounding p for dv could yield 0 for small values. ds is
// computed from p in float.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../common/smaller_or_nan.cuh"
#include "sm80_backward_products.cuh"

namespace attend {

template <class Element>
constexpr int kSm80Shift = element_info(Element::kType).p_shift;
template <class Config>
constexpr float kSm80Unshift = 1.0f / static_cast<float>(1 << kSm80Shift<ElementOf<Config>>);
// Whether sm80_backward_unmodified also stores ds multiplied by 2^kShift until the gradient is stored. This requires a
// type with the range of float.
template <class Element>
constexpr bool kSm80ShiftsDs = element_info(Element::kType).has_float_range;

// Returns lse or delta for the lane's scores i and i + 1 of row group r, where i is even. Query rows are the columns of
// the scores if the warp owns keys, and their rows otherwise. `saved` points to the value of the lane's first query
// row.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float2 sm80_statistics(const float* saved, int r, int i) {
  if constexpr (Sm80BackwardShape<Config>::kOwnsKeys) {
    return *reinterpret_cast<const float2*>(saved + i / 4 * kColumnsOfTile);
  }
  const float of_row = saved[r * kMmaRows + i / 2 % 2 * kRowHalf];
  return {of_row, of_row};
}

// Returns the index in smem.lse or smem.delta at which the argument `saved` of sm80_statistics() must start. The scores
// belong to the streamed rows or keys from `streamed` on.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_saved(const Sm80BackwardStorage<Config>& smem, int streamed) {
  const int lane = recomputed_thread() % 32;
  if constexpr (!Sm80BackwardShape<Config>::kOwnsKeys) return sm80_first_owned<Config>(0) + accumulator_row(lane);
  return sm80_buffer(smem, streamed) * Config::kStreamed + streamed % Config::kStreamed + accumulator_column(lane);
}

// Whether the code must test each score for -inf. Scores may be hidden by the window, by a bias or mask from memory, or
// by a custom score.
template <class Config, bool kAllVisible>
constexpr bool kSm80Selects =
    !kAllVisible || Score<Config>::kAddsFromMemory || Score<Config>::kMasksFromMemory || Score<Config>::kIsCustom;

// Returns 2^kShift p for a value that apply_rules() computed. `scale` is score_scale(). Masked values give 0 even if
// lse is NaN. p is limited to 1. It could exceed 1 if the rounding error of lse is larger than the differences between
// scores.
template <class Config, bool kAllVisible>
[[nodiscard]] __device__ __forceinline__ float sm80_probability(float value, float lse, float log2_sum, float scale) {
  constexpr auto kShift = static_cast<float>(kSm80Shift<ElementOf<Config>>);
  // Not a fused multiply-add, because the product must be rounded in the same way as lse. Then, even for huge scores,
  // the largest score minus lse is 0.
  const float above = __fsub_rn(__fmul_rn(value, scale), lse);
  const float p = exp2_fast(smaller_or_nan(fmaf(above, kLog2E, kShift - log2_sum), kShift));
  if constexpr (!kSm80Selects<Config, kAllVisible>) return p;
  return value == -kInfinity ? 0.0f : p;
}

// Returns whether all scores of this step are visible according to lengths, window and block map. The step combines the
// warp's owned rows or keys with kStep streamed rows or keys.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_all_visible(const Sm80BackwardBlock<Config>& block, int streamed) {
  using Shape = Sm80BackwardShape<Config>;
  constexpr int kOwned = Shape::kOwnedOfWarp;
  const int64 owned = block.work.owned + sm80_first_owned<Config>(0);
  if constexpr (Shape::kOwnsKeys) {
    return TileView::of(block.rules.window, streamed, owned).template all_visible<Config::kStep, kOwned>() &&
           block.rules.map.template sees_all<Config::kStep, kOwned>(streamed, owned);
  }
  return TileView::of(block.rules.window, owned, streamed).template all_visible<kOwned, Config::kStep>() &&
         block.rules.map.template sees_all<kOwned, Config::kStep>(owned, streamed);
}

// Turns s into 2^kShift p. s holds the products q.k for kStep streamed rows; `streamed` is the index of the first one
// in the sequence. If Score<Config>::kHasSlopes is set, writes the derivative to `slope`. With dropout, writes the bits
// of kept entries to `kept`.
template <bool kAllVisible, class Config>
__device__ __forceinline__ void sm80_make_p(Sm80Scores<Config>& s, Sm80Scores<Config>& slope,
                                            uint32 (&kept)[Config::kRowGroups][kKeptWords<Config::kStep / 2>],
                                            const Sm80BackwardStorage<Config>& smem, int streamed) {
  using Shape = Sm80BackwardShape<Config>;
  const Sm80BackwardBlock<Config>& block = smem.block;
  const int lane = threadIdx.x % 32;
  const float scale = score_scale(block.rules);
  const int first_saved = sm80_first_saved(smem, streamed);
  const float* lse = smem.lse + first_saved;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const int64 owned = block.work.owned + sm80_first_owned<Config>(r);
    const auto tile = Shape::kOwnsKeys ? block.rules.tile(streamed, owned) : block.rules.tile(owned, streamed);
    if constexpr (Shape::kOwnsKeys) {
      apply_rules_transposed<kAllVisible>(tile, s[r], lane, slope[r]);
    } else {
      apply_rules<kAllVisible>(tile, s[r], lane, slope[r]);
    }
#pragma unroll
    for (int i = 0; i < Shape::kScores; i += 2) {
      const float2 of_rows = sm80_statistics<Config>(lse, r, i);
      float2 log2_sum = {0.0f, 0.0f};
      if constexpr (Config::kHasLseRounding) {
        log2_sum = sm80_statistics<Config>(smem.log2_sums.of_row + first_saved, r, i);
      }
      s[r][i] = sm80_probability<Config, kAllVisible>(s[r][i], of_rows.x, log2_sum.x, scale);
      s[r][i + 1] = sm80_probability<Config, kAllVisible>(s[r][i + 1], of_rows.y, log2_sum.y, scale);
    }
    if constexpr (Score<Config>::kDrops && Shape::kOwnsKeys) kept_bits_transposed<Shape::kScores>(tile, kept[r], lane);
    if constexpr (Score<Config>::kDrops && !Shape::kOwnsKeys) kept_bits<Shape::kScores>(tile, kept[r], lane);
  }
}

template <int kWords>
[[nodiscard]] __device__ __forceinline__ bool is_kept(const uint32 (&kept)[kWords], int i) {
  return (kept[i / 32] >> (i % 32) & 1u) != 0;
}

// Turns dp, the products dout.v, into ds. The derivative of a transform is not applied yet. If an entry of p is masked,
// its ds is 0, even if dp is NaN.
template <bool kAllVisible, class Config>
__device__ __forceinline__ void sm80_make_ds(Sm80Scores<Config>& dp, const Sm80Scores<Config>& p,
                                             const uint32 (&kept)[Config::kRowGroups][kKeptWords<Config::kStep / 2>],
                                             const Sm80BackwardStorage<Config>& smem, int streamed,
                                             float scale_of_kept) {
  const float factor = Score<Config>::kDrops ? kSm80Unshift<Config> * scale_of_kept : kSm80Unshift<Config>;
  const float* delta = smem.delta + sm80_first_saved(smem, streamed);
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Sm80BackwardShape<Config>::kScores; ++i) {
      const float2 of_rows = sm80_statistics<Config>(delta, r, i / 2 * 2);
      float gradient = dp[r][i];
      if constexpr (Score<Config>::kDrops) gradient = is_kept(kept[r], i) ? gradient : 0.0f;
      gradient = fmaf(gradient, factor, -kSm80Unshift<Config> * (i % 2 == 0 ? of_rows.x : of_rows.y));
      dp[r][i] = p[r][i] * gradient;
      if constexpr (kSm80Selects<Config, kAllVisible>) dp[r][i] = p[r][i] == 0.0f ? 0.0f : dp[r][i];
    }
  }
}

}  // namespace attend
