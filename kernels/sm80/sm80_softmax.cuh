// The online softmax of sm80_forward if only masks modify the scores (Config::kSpeculates). Before the exponential it
// needs one instruction per score, compared with two in kNatural units. It needs no instruction for the row maximum.
//
// The value m that is subtracted from the scores need not be the row maximum, if l and o are relative to the same m
// (../attention/lagging_softmax.cuh). So p is computed with the current m. If a thread's sum of p over the tile is at
// most 2^kMaxLag, no p exceeds 2^kMaxLag, and the result is valid. Otherwise the maximum is computed, m is raised, and
// p is computed again. This requires the product q k^T again, because p has overwritten the scores.
//
// m has the units of scores. With c = scale_log2, the exponents are c s - b, where b is the rounded product c m. l and
// o are relative to b, and lse corrects for the rounding of b. If b is so large that its rounding changes p noticeably,
// the exponents are c (s - m) instead.
#pragma once

#include "../attention/lagging_softmax.cuh"
#include "../attention/online_softmax.cuh"

namespace attend {

constexpr float kLargestBase = 1 << 20;  // at this b, half a unit in the last place changes p by a factor of 1.05
constexpr float kLargestTileSum = 256.0f;
static_assert(kMaxLag == 8.0f, "kLargestTileSum = 2^kMaxLag");

// Softmax state of a thread's two rows.
template <bool kSpeculates>
struct Sm80Softmax : RunningSoftmax<ScoreUnits::kNatural> {};

template <>
struct Sm80Softmax<true> : RunningSoftmax<ScoreUnits::kNatural> {
  // Returns whether exponents may subtract b. Returns false if m is -inf or NaN.
  [[nodiscard]] static __device__ __forceinline__ bool can_fold(float base) { return fabsf(base) <= kLargestBase; }

  // Returns the exponent of 2 for a score. It is correct for any score and any m.
  [[nodiscard]] __device__ __forceinline__ float exponent_of(float score, int h, float scale_log2) const {
    const float seen_max = exponent_base(row_max[h]);
    const float base = seen_max * scale_log2;
    return can_fold(base) ? fmaf(score, scale_log2, -base) : (score - seen_max) * scale_log2;
  }

  // Raises m of row h to tile_max. Returns the factor for l and o of earlier tiles.
  [[nodiscard]] __device__ __forceinline__ float raise_row(int h, float tile_max, float scale_log2) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, tile_max);
    const float new_max = exponent_base(row_max[h]);
    const float old_base = old_max * scale_log2;
    const float new_base = new_max * scale_log2;
    const bool folds = can_fold(old_base) && can_fold(new_base);
    const float rescale = exp2_fast(folds ? old_base - new_base : (old_max - new_max) * scale_log2);
    row_sum[h] *= rescale;
    return rescale;
  }

  // Returns lse of row h, like RunningSoftmax::lse(), and corrects for the rounding of b.
  [[nodiscard]] __device__ __forceinline__ float lse(int h, float scale) const {
    const float scale_log2 = fminf(scale * kLog2E, kLargestFloat);
    const float base = row_max[h] * scale_log2;
    const float rounded_off = can_fold(base) ? fmaf(row_max[h], scale_log2, -base) : 0.0f;
    if (row_sum[h] == 0.0f) return -kInfinity;
    return fmaf(row_max[h], scale, (log2_fast(row_sum[h]) - rounded_off) * kLn2);
  }
};

// Raises m of a warp's rows to the values in tile_max, and turns the scores of the tile into p.
template <int kTiles, class Rows>
__device__ __forceinline__ void follow_maxima(Rows (&tile)[kTiles], const float (&tile_max)[kTiles][kRowsOfThread],
                                              float scale_log2) {
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    Rows& rows = tile[r];
    float rescale[kRowsOfThread];
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) rescale[h] = rows.softmax.raise_row(h, tile_max[r][h], scale_log2);
    scale_rows(rows.o, rescale);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(rows.s) / sizeof(float)); ++i) {
      rows.s[i] = exp2_fast(rows.softmax.exponent_of(rows.s[i], i / 2 % 2, scale_log2));
    }
    rows.softmax.add_to_sum(rows.s);
  }
}

// Raises m of a warp's rows to the maxima over the warp's keys, and turns the scores of the tile into p.
template <int kTiles, class Rows>
__device__ __forceinline__ void follow_maxima(Rows (&tile)[kTiles], float scale_log2) {
  float tile_max[kTiles][kRowsOfThread];
#pragma unroll
  for (int i = 0; i < kTiles * kRowsOfThread; ++i) {
    tile_max[i / kRowsOfThread][i % kRowsOfThread] =
        quad_max(thread_row_max(tile[i / kRowsOfThread].s, i % kRowsOfThread));
  }
  follow_maxima(tile, tile_max, scale_log2);
}

}  // namespace attend
