// Online softmax of a consumer of sm90_f32_forward, with two query rows per thread. ../attention/online_softmax.cuh has
// the equations. Let c be the factor that turns a tile's scores s into exponents of 2. Then
//   p = 2^(c s - b),   l = sum p,   lse = b ln 2 + ln l.
// When b is set, it is the row maximum of c s minus kTop. The largest p is then 2^kTop, and two float16 pieces
// represent values from there down to 2^-25. If p is below 2^-40 of the largest p, it is lost. If p is below 2^-17 of
// the largest p, it has fewer than 23 bits, but a sum of 2^16 such values is accurate to 2^-24. b stays unchanged until
// some p exceeds 2^(kTop + kMostLag).
//
// c s - b is rounded once. All values of a row subtract the same b, so the rounding error of b cancels. If b is so
// large that this error could move p out of the float16 range, `rest` holds the part of b that was rounded off. So p is
// correct even for scores of 1e30.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../common/element.cuh"
#include "sm90_f32_products.cuh"

namespace attend {

template <class Config>
struct F32Softmax {
  static constexpr int kScores = Sm90F32Shape<Config>::kScores;
  static constexpr float kTop = 14.0f, kMostLag = 1.0f;
  static constexpr float kLargeBase = 65536.0f;  // for larger |b| the unit in the last place exceeds 2^-7

  float base[kRowsOfThread] = {-kInfinity, -kInfinity};  // b, equal in all lanes of a quad; -inf before the first
                                                         // visible key
  float rest[kRowsOfThread] = {0.0f, 0.0f};              // the part of b that was rounded off; the exact b is base +
                                                         // rest
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};           // l, summed over the columns of this thread only

  // Limits |s| to 2^127, so that c s stays finite. Larger scores occur, for example with a bias of -FLT_MAX.
  static __device__ __forceinline__ void limit(float (&s)[kScores]) {
    constexpr float kMost = 0x1p127f;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (fabsf(s[i]) > kMost && fabsf(s[i]) < kInfinity) s[i] = copysignf(kMost, s[i]);
    }
  }

  // Sets b so that the largest p of the tile is 2^kTop, but only if this raises b. `factor` returns the factor for l
  // and o of earlier tiles.
  __device__ __forceinline__ void raise(int h, float largest, float c, float& factor) {
    factor = 1.0f;
    const float new_base = fmaf(largest, c, -kTop);
    if (!(new_base > base[h])) return;
    const float new_rest = fabsf(new_base) > kLargeBase ? fmaf(largest, c, -new_base) - kTop : 0.0f;
    factor = exp2_fast((base[h] - new_base) + (rest[h] - new_rest));
    base[h] = new_base;
    rest[h] = new_rest;
    row_sum[h] *= factor;
  }

  // Raises b if some p of the tile would be too large. Returns whether b was raised. All lanes of the warp get the same
  // result.
  [[nodiscard]] __device__ __forceinline__ bool follow(const float (&s)[kScores], float c,
                                                       float (&factor)[kRowsOfThread]) {
    float largest[kRowsOfThread];
    bool has_outgrown = false;
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      largest[h] = quad_max(thread_row_max(s, h));
      has_outgrown |= fmaf(largest[h], c, -base[h]) - rest[h] > kTop + kMostLag;
    }
    if (!__any_sync(kAllLanes, has_outgrown)) return false;
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) raise(h, largest[h], c, factor[h]);
    return true;
  }

  // Computes p of the tile as two pieces, and adds p to the row sums.
  template <bool kHasRest>
  __device__ __forceinline__ void exponentials(const float (&s)[kScores], float c, F32Weights<Config>& p) {
    const float from[kRowsOfThread] = {exponent_base(base[0]), exponent_base(base[1])};
    float sum[kRowsOfThread] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int h = i % 2;
      float low = fmaf(s[2 * i], c, -from[h]), high = fmaf(s[2 * i + 1], c, -from[h]);
      if constexpr (kHasRest) low -= rest[h], high -= rest[h];
      low = exp2_fast(low), high = exp2_fast(high);
      sum[h] += low;
      sum[h] += high;
      const uint32 pair = Float16::pack(low, high);
      p.piece[kHighPiece][i] = pair;
      p.piece[kLowPiece][i] = Float16::pack(low - Float16::low(pair), high - Float16::high(pair));
    }
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // Processes a tile of scores, in which hidden keys have -inf. Returns whether o must be multiplied by `factor`.
  [[nodiscard]] __device__ __forceinline__ bool update(const float (&s)[kScores], float c, F32Weights<Config>& p,
                                                       float (&factor)[kRowsOfThread]) {
    const bool is_raised = follow(s, c, factor);
    if (__any_sync(kAllLanes, rest[0] != 0.0f || rest[1] != 0.0f)) {
      exponentials<true>(s, c, p);
    } else {
      exponentials<false>(s, c, p);
    }
    return is_raised;
  }

  // Finishes the softmax after the last key tile: l becomes the sum over the complete row.
  __device__ __forceinline__ void finish() {
    row_sum[0] = quad_sum(row_sum[0]);
    row_sum[1] = quad_sum(row_sum[1]);
  }
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }
  // Returns the natural logarithm of the sum of exp(score), or -inf for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    constexpr float kUnit = 0x1p-14f;
    return fmaf(base[h] + kTop, kLn2, fmaf(rest[h], kLn2, logf(row_sum[h] * kUnit)));
  }
};

}  // namespace attend
