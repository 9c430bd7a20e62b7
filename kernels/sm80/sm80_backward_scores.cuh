// From products to gradients of scores, in a warp's registers:
//
//   p = exp(s - lse)    ds = p (dropout(dout v^T) - delta)    delta = rowsum(dout * o) - dlse
//
// with the exponent less log2_sum, in base 2: lse_rounding.cuh.
//
// p is kept 2^kShift times as large, so that rounded for dv it does not fall below what the type can hold; ds is made
// of it as it is, in float.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../common/smaller_or_nan.cuh"
#include "sm80_backward_products.cuh"

namespace attend {

template <class Element>
constexpr int kSm80Shift = Element::kType == ElementType::kF16 ? 14 : 24;
template <class Config>
constexpr float kSm80Unshift = 1.0f / static_cast<float>(1 << kSm80Shift<ElementOf<Config>>);
// Of sm80_backward_plain: is ds, too, 2^kShift times as large, to be divided at the end? The type has float's range.
template <class Element>
constexpr bool kSm80ShiftsDs = Element::kType == ElementType::kBF16;

// lse or delta of the query rows of a lane's scores i and i + 1 of group r (i is even): its columns where the warp owns
// keys, else its rows. saved: that of the lane's first.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float2 sm80_statistics(const float* saved, int r, int i) {
  if constexpr (Sm80BackwardShape<Config>::kOwnsKeys) {
    return *reinterpret_cast<const float2*>(saved + i / 4 * kColumnsOfTile);
  }
  const float of_row = saved[r * kMmaRows + i / 2 % 2 * kRowHalf];
  return {of_row, of_row};
}

// Where a lane's first is, for the scores of streamed rows or keys from `streamed` on.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_saved(int streamed) {
  const int lane = recomputed_thread() % 32;
  if constexpr (!Sm80BackwardShape<Config>::kOwnsKeys) return sm80_first_owned<Config>(0) + accumulator_row(lane);
  return sm80_buffer<Config>(streamed) * Config::kStreamed + streamed % Config::kStreamed + accumulator_column(lane);
}

// Is each score looked at, whether it is masked? Also where all are visible, if a bias or a mask may hide them.
template <class Config, bool kAllVisible>
constexpr bool kSm80Selects = !kAllVisible || Score<Config>::kAddsFromMemory || Score<Config>::kMasksFromMemory;

// 2^kShift p of a value that apply_rules() has made; scale: score_scale(). Where it is masked a select, since lse may
// be NaN. Above 1, where lse is rounded more coarsely than scores differ, p would be no probability.
template <class Config, bool kAllVisible>
[[nodiscard]] __device__ __forceinline__ float sm80_probability(float value, float lse, float log2_sum, float scale) {
  constexpr auto kShift = static_cast<float>(kSm80Shift<ElementOf<Config>>);
  // Rounded as lse is, so that the largest of huge scores differs from it by 0: no multiply-add.
  const float above = __fsub_rn(__fmul_rn(value, scale), lse);
  const float p = exp2_fast(smaller_or_nan(fmaf(above, kLog2E, kShift - log2_sum), kShift));
  if constexpr (!kSm80Selects<Config, kAllVisible>) return p;
  return value == -kInfinity ? 0.0f : p;
}

// Does each of the warp's rows see each of its keys, as far as lengths and window go? Of kStep streamed rows or keys.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_all_visible(const Sm80BackwardBlock<Config>& block, int streamed) {
  using Shape = Sm80BackwardShape<Config>;
  constexpr int kOwned = Shape::kOwnedOfWarp;
  const int64 owned = block.work.owned + sm80_first_owned<Config>(0);
  if constexpr (Shape::kOwnsKeys) {
    return TileView::of(block.rules.window, streamed, owned).template all_visible<Config::kStep, kOwned>();
  }
  return TileView::of(block.rules.window, owned, streamed).template all_visible<kOwned, Config::kStep>();
}

// s, the products q.k of kStep streamed rows from `streamed` of the sequence on, becomes 2^kShift p. slope:
// kTransforms. kept: bits of the entries that are not dropped.
template <bool kAllVisible, class Config>
__device__ __forceinline__ void sm80_make_p(Sm80Scores<Config>& s, Sm80Scores<Config>& slope,
                                            uint32 (&kept)[Config::kRowGroups][kKeptWords<Config::kStep / 2>],
                                            const Sm80BackwardStorage<Config>& smem, int streamed) {
  using Shape = Sm80BackwardShape<Config>;
  const Sm80BackwardBlock<Config>& block = smem.block;
  const int lane = threadIdx.x % 32;
  const float scale = score_scale(block.rules);
  const int first_saved = sm80_first_saved<Config>(streamed);
  const float* lse = smem.lse + first_saved;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    const int64 owned = block.work.owned + sm80_first_owned<Config>(r);
    const auto tile = Shape::kOwnsKeys ? block.rules.tile(streamed, owned) : block.rules.tile(owned, streamed);
    apply_rules<kAllVisible, Shape::kOwnsKeys>(tile, s[r], lane, slope[r]);
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
    if constexpr (Score<Config>::kDrops) kept_bits<Shape::kScores, Shape::kOwnsKeys>(tile, kept[r], lane);
  }
}

template <int kWords>
[[nodiscard]] __device__ __forceinline__ bool is_kept(const uint32 (&kept)[kWords], int i) {
  return (kept[i / 32] >> (i % 32) & 1u) != 0;
}

// dp, the products dout.v, becomes ds, before the derivative of a transform: 0 where p is masked, whatever dp is there.
template <bool kAllVisible, class Config>
__device__ __forceinline__ void sm80_make_ds(Sm80Scores<Config>& dp, const Sm80Scores<Config>& p,
                                             const uint32 (&kept)[Config::kRowGroups][kKeptWords<Config::kStep / 2>],
                                             const Sm80BackwardStorage<Config>& smem, int streamed,
                                             float dropout_scale) {
  const float factor = Score<Config>::kDrops ? kSm80Unshift<Config> * dropout_scale : kSm80Unshift<Config>;
  const float* delta = smem.delta + sm80_first_saved<Config>(streamed);
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

// Scores as operands, rounded.
template <class Config>
__device__ __forceinline__ void sm80_pack(OperandA (&to)[Config::kRowGroups][Config::kStep / kMmaDepth],
                                          const Sm80Scores<Config>& scores) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kStep / kMmaDepth; ++i) {
      to[r][i] = pack_operand_a<ElementOf<Config>>(scores[r] + i * kMmaDepth / 2);
    }
  }
}

}  // namespace attend
