// Computes p and ds in sm80_backward_unmodified. Between q k^T and the exponential it supports no modification except
// masks.
//
//   p = 2^(c s - c lse)    ds = p (dp - delta)    c = scale log2(e)
//
// p is stored multiplied by 2^kSm80Shift. ds is also stored with this factor if the type has the range of float
// (kSm80ShiftsDs). The sum of dp starts at -delta. Streamed rows that do not exist are zeros. Their p is 1, but it is
// multiplied only by zeros.
#pragma once

#include "sm80_backward_scores.cuh"
#include "sm80_backward_unmodified_block.cuh"

namespace attend {

constexpr float kSm80LargestFolded = 1 << 19;  // limit of |lse|: beyond it, half a unit in the last place of c lse
                                               // could change p by more than a factor of 1.05

// Adds owned streamed^T to `sum`, for the streamed rows from `first` of the tile on.
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

// Returns the index of the saved statistics of a lane's first two streamed rows. The statistics of its next two rows
// follow kColumnsOfTile later.
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

// Computes dp - delta for the streamed rows from `row` of the sequence on.
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

// Returns whether the window hides none of the scores between the warp's keys and the streamed rows from `row` on.
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

// Sets dp of masked scores to 0, because dp is NaN if its row or key holds NaN.
template <class Config>
__device__ __forceinline__ void sm80_unmodified_hide(Sm80PartScores<Config>& dp, const Sm80PartScores<Config>& s) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Sm80UnmodifiedShape<Config>::kScores; ++i) dp[r][i] = s[r][i] == -kInfinity ? 0.0f : dp[r][i];
  }
}

// Replaces s by p. If kFolds is set, one multiply-add computes the exponent. `lse` points to the values of the lane's
// first two rows.
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
