// p and ds of sm80_backward_plain, where nothing but masks comes between q k^T and the exponents.
//
//   p = 2^(c s - c lse)    ds = p (dp - delta)    c = scale log2(e)
//
// Both 2^kSm80Shift times as large, ds where the type has float's range (kSm80ShiftsDs). dp is summed from -delta on.
// What does not exist of the streamed rows has come as zeros: p is 1 there, and whatever it is multiplied with 0.
#pragma once

#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

constexpr float kSm80LargestFolded = 1 << 19;  // of lse: half a unit in the last place of c lse is a factor of 1.05

// Scores of a warp at a time: kRowGroups times 16 keys, kRows streamed rows.
template <class Config, int kRows>
using Sm80Part = float[Config::kRowGroups][kRows / 2];

// sum += owned streamed^T, for kRows streamed rows from `first` on.
template <class Config, int kDepth, bool kNegate, int kRows, class OwnedTile, class StreamedTile>
__device__ __forceinline__ void sm80_add_product(Sm80Part<Config, kRows>& sum, const OwnedTile& owned,
                                                 const StreamedTile& streamed, int first) {
  const auto a = BlockReader<OwnedTile>::by_rows(owned, recomputed_thread() % 32);
  const auto b = BlockReader<StreamedTile>::by_columns(streamed, recomputed_thread() % 32);
#pragma unroll
  for (int column = 0; column < kDepth; column += kMmaDepth) {
    OperandA x[Config::kRowGroups];
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) x[r] = negated<kNegate>(a.a(sm80_first_owned<Config>(r), column));
#pragma unroll
    for (int row = 0; row < kRows; row += 2 * kMmaColumns) {
      const OperandBPair pair = b.b_transposed(first + row, column);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* to = sum[i / 2] + row / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(to, x[i / 2], pair.half[i % 2]);
      }
    }
  }
}

// Where a lane's first two of kRows streamed rows are in what is saved of rows; the next ones kColumnsOfTile further.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_saved_at(int row) {
  return sm80_buffer<Config>(row) * Config::kStreamed + row % Config::kStreamed +
         accumulator_column(recomputed_thread() % 32);
}

// s = q k^T, from streamed row `row` of the sequence on. -inf where it is masked.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_s(Sm80Part<Config, kRows>& s, const Sm80BackwardStorage<Config>& smem,
                                             int row) {
#pragma unroll
  for (auto& of_group : s) {
#pragma unroll
    for (float& number : of_group) number = 0.0f;
  }
  sm80_add_product<Config, Sm80BackwardShape<Config>::kDepth, Config::kNegateScores, kRows>(
      s, smem.owned, smem.stage[sm80_buffer<Config>(row)].rows, row % Config::kStreamed);
}

// dp - delta, likewise.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_dp(Sm80Part<Config, kRows>& dp, const Sm80BackwardStorage<Config>& smem,
                                              int row) {
  const float* delta = smem.delta + sm80_saved_at<Config>(row);
#pragma unroll
  for (int i = 0; i < kRows / 2; i += kAccumulatorsOfMma) {
    const float2 of_rows = *reinterpret_cast<const float2*>(delta + i / kAccumulatorsOfMma * kColumnsOfTile);
#pragma unroll
    for (int r = 0; r < Config::kRowGroups; ++r) {
      dp[r][i] = dp[r][i + 2] = -of_rows.x;
      dp[r][i + 1] = dp[r][i + 3] = -of_rows.y;
    }
  }
  sm80_add_product<Config, Sm80BackwardShape<Config>::kDepthV, false, kRows>(
      dp, smem.owned_v, smem.stage[sm80_buffer<Config>(row)].rows_v, row % Config::kStreamed);
}

// Masks of kRows streamed rows, where not all are seen.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_mask(Sm80Part<Config, kRows>& s, const Sm80BackwardBlock<Config>& block,
                                                int row) {
  const int lane = recomputed_thread() % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    apply_rules<false, true>(block.rules.tile(row, block.work.owned + sm80_first_owned<Config>(r)), s[r], lane);
  }
}

// p in the place of s. kFolds: one multiply-add before the exponential. lse: of the lane's first two rows.
template <class Config, int kRows, bool kFolds>
__device__ __forceinline__ void sm80_plain_exponentials(Sm80Part<Config, kRows>& s, const float* lse, float scale) {
  constexpr auto kShift = static_cast<float>(kSm80Shift<ElementOf<Config>>);
  const float scale_log2 = fminf(scale * kLog2E, kLargestFloat);
#pragma unroll
  for (int i = 0; i < kRows / 2; i += kAccumulatorsOfMma) {
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

template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_p(Sm80Part<Config, kRows>& s, const Sm80BackwardStorage<Config>& smem,
                                             float scale, int row) {
  const float* lse = smem.lse + sm80_saved_at<Config>(row);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; i += kColumnsOfTile) {
    const float2 of_rows = *reinterpret_cast<const float2*>(lse + i);
    largest = fmaxf(largest, fmaxf(fabsf(of_rows.x), fabsf(of_rows.y)));
  }
  if (__any_sync(kAllLanes, largest > kSm80LargestFolded)) {
    sm80_plain_exponentials<Config, kRows, false>(s, lse, scale);
  } else {
    sm80_plain_exponentials<Config, kRows, true>(s, lse, scale);
  }
}

// ds in the place of dp - delta.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_ds(Sm80Part<Config, kRows>& dp, const Sm80Part<Config, kRows>& p) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      dp[r][i] *= kSm80ShiftsDs<ElementOf<Config>> ? p[r][i] : kSm80Unshift<Config> * p[r][i];
    }
  }
}

// 0 instead of what dp is where p is 0 by a mask: the product of a row that may not be seen.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_hide(Sm80Part<Config, kRows>& dp, const Sm80Part<Config, kRows>& s,
                                                float masked) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) dp[r][i] = s[r][i] == masked ? 0.0f : dp[r][i];
  }
}

template <class Config, int kRows>
__device__ __forceinline__ void sm80_plain_pack(OperandA (&to)[Config::kRowGroups][kRows / kMmaDepth],
                                                const Sm80Part<Config, kRows>& scores) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kRows / kMmaDepth; ++i) {
      to[r][i] = pack_operand_a<ElementOf<Config>>(scores[r] + i * kMmaDepth / 2);
    }
  }
}

// gradient += x streamed, kColumns of its columns from `column` on, for kRows streamed rows from `first` on. x: scores,
// rounded.
template <class Config, int kColumns, int kRows, class StreamedTile>
__device__ __forceinline__ void sm80_plain_add(float (&gradient)[Config::kRowGroups][kColumns / 2],
                                               const OperandA (&x)[Config::kRowGroups][kRows / kMmaDepth],
                                               const StreamedTile& streamed, int first, int column) {
  const auto b = BlockReader<StreamedTile>::by_rows(streamed, recomputed_thread() % 32);
#pragma unroll
  for (int row = 0; row < kRows; row += kMmaDepth) {
#pragma unroll
    for (int c = 0; c < kColumns; c += 2 * kMmaColumns) {
      const OperandBPair pair = b.b(first + row, column + c);
#pragma unroll
      for (int i = 0; i < 2 * Config::kRowGroups; ++i) {
        float* to = gradient[i / 2] + c / 2 + i % 2 * kAccumulatorsOfMma;
        mma_add<ElementOf<Config>>(to, x[i / 2][row / kMmaDepth], pair.half[i % 2]);
      }
    }
  }
}

}  // namespace attend
