// p and ds of sm80_backward_unmodified, which supports no modification except masks between q k^T and the exponents.
//
//   p = 2^(c s - c lse)    ds = p (dp - delta)    c = scale log2(e)
//
// p is 2^kSm80Shift times as large. So is ds if its type has float's range (kSm80ShiftsDs). The sum of dp starts from
// -delta. Missing streamed rows are zeros: p is 1 there, and is multiplied only by zeros.
#pragma once

#include "sm80_backward_scores.cuh"
#include "sm80_backward_unmodified_block.cuh"

namespace attend {

constexpr float kSm80LargestFolded = 1 << 19;  // largest lse: half a unit in the last place of c lse is then a factor
                                               // of 1.05

// Computes sum += owned streamed^T, for the streamed rows from `first` of the tile on.
template <class Config, Sm80Product kProduct>
__device__ __forceinline__ void sm80_add_product(
    Sm80PartScores<Config>& sum, const typename Sm80ProductOperands<Config, kProduct>::OwnedTile& owned,
    const typename Sm80ProductOperands<Config, kProduct>::StreamedTile& streamed, int first) {
  const Sm80OwnedProduct<Config, kProduct> of_columns(owned, streamed, first);
#pragma unroll
  for (int column = 0; column < Sm80ProductOperands<Config, kProduct>::kDepth; column += kMmaDepth) {
    of_columns.add_columns(sum, column);
  }
}

// Returns the index of the saved values of a lane's first two streamed rows. The values of its next two are
// kColumnsOfTile further.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_saved_at(int row) {
  return sm80_buffer<Config>(row) * Config::kStreamed + row % Config::kStreamed +
         accumulator_column(recomputed_thread() % 32);
}

// Computes s = q k^T without masks, for the streamed rows from `row` of the sequence on.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_s(Sm80PartScores<Config>& s, const Sm80BackwardStorage<Config>& smem,
                                                  int row) {
#pragma unroll
  for (auto& of_group : s) {
#pragma unroll
    for (float& number : of_group) number = 0.0f;
  }
  sm80_add_product<Config, Sm80Product::kScores>(s, smem.owned, smem.stage[sm80_buffer<Config>(row)].rows,
                                                 row % Config::kStreamed);
}

// Computes dp - delta for the same rows.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_dp(Sm80PartScores<Config>& dp, const Sm80BackwardStorage<Config>& smem,
                                                   int row) {
  const float* delta = smem.delta + sm80_saved_at<Config>(row);
#pragma unroll
  for (int i = 0; i < Sm80UnmodifiedShape<Config>::kScores; i += kAccumulatorsOfMma) {
    const float2 of_rows = *reinterpret_cast<const float2*>(delta + i / kAccumulatorsOfMma * kColumnsOfTile);
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      dp[r][i] = dp[r][i + 2] = -of_rows.x;
      dp[r][i + 1] = dp[r][i + 3] = -of_rows.y;
    }
  }
  sm80_add_product<Config, Sm80Product::kGradients>(dp, smem.owned_v, smem.stage[sm80_buffer<Config>(row)].rows_v,
                                                    row % Config::kStreamed);
}

// Returns whether the window hides no score of the warp's keys with the streamed rows from `row` on.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_is_whole(const Sm80BackwardBlock<Config>& block, int row) {
  return block.whole[sm80_key_warp<Config>()].has(row, Sm80UnmodifiedShape<Config>::kRows);
}

// Sets masked scores to -inf.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_mask(Sm80PartScores<Config>& s, const Sm80BackwardBlock<Config>& block,
                                                     int row) {
  const int lane = recomputed_thread() % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    float unused[Sm80UnmodifiedShape<Config>::kScores];
    const auto tile = block.rules.tile(row, block.work.owned + sm80_first_owned<Config>(r));
    apply_rules_transposed<false>(tile, s[r], lane, unused);
  }
}

// Sets dp of masked scores to 0, because it may be the product of a row that holds NaN.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_hide(Sm80PartScores<Config>& dp, const Sm80PartScores<Config>& s) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Sm80UnmodifiedShape<Config>::kScores; ++i) dp[r][i] = s[r][i] == -kInfinity ? 0.0f : dp[r][i];
  }
}

// Replaces s by p. kFolds: one multiply-add before the exponential. lse: points to the lane's first two rows.
template <bool kFolds, class Config>
__device__ __forceinline__ void sm80_unmodified_exponentials(Sm80PartScores<Config>& s, const float* lse, float scale) {
  constexpr auto kShift = static_cast<float>(kSm80Shift<ElementOf<Config>>);
  const float scale_log2 = fminf(scale * kLog2E, kLargestFloat);
#pragma unroll
  for (int i = 0; i < Sm80UnmodifiedShape<Config>::kScores; i += kAccumulatorsOfMma) {
    const float2 of_rows = *reinterpret_cast<const float2*>(lse + i / kAccumulatorsOfMma * kColumnsOfTile);
    const float base[2] = {fmaf(of_rows.x, -kLog2E, kShift), fmaf(of_rows.y, -kLog2E, kShift)};
#pragma unroll
    for (int j = 0; j < Config::kRowGroups * kAccumulatorsOfMma; ++j) {
      float& score = s[j / kAccumulatorsOfMma][i + j % kAccumulatorsOfMma];
      if constexpr (kFolds) {
        score = exp2_fast(fmaf(score, scale_log2, base[j % 2]));
      } else {
        score = sm80_probability<Config, true>(score, j % 2 == 0 ? of_rows.x : of_rows.y, 0.0f, scale);
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void sm80_unmodified_p(Sm80PartScores<Config>& s, const Sm80BackwardStorage<Config>& smem,
                                                  float scale, int row) {
  const float* lse = smem.lse + sm80_saved_at<Config>(row);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < Sm80UnmodifiedShape<Config>::kRows; i += kColumnsOfTile) {
    const float2 of_rows = *reinterpret_cast<const float2*>(lse + i);
    largest = fmaxf(largest, fmaxf(fabsf(of_rows.x), fabsf(of_rows.y)));
  }
  if (__any_sync(kAllLanes, largest > kSm80LargestFolded)) {
    sm80_unmodified_exponentials<false, Config>(s, lse, scale);
  } else {
    sm80_unmodified_exponentials<true, Config>(s, lse, scale);
  }
}

// Replaces dp - delta by ds.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_ds(Sm80PartScores<Config>& dp, const Sm80PartScores<Config>& p) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Sm80UnmodifiedShape<Config>::kScores; ++i) {
      dp[r][i] *= kSm80ShiftsDs<ElementOf<Config>> ? p[r][i] : kSm80Unshift<Config> * p[r][i];
    }
  }
}

}  // namespace attend
