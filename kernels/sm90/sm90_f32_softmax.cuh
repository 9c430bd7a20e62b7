// Online softmax of a consumer of sm90_f32_forward, two rows a thread; ../attention/online_softmax.cuh has the
// equations. With c the factor that makes exponents of 2 of a tile's values,
//   p = 2^(c s - b),   l = sum p,   lse = b ln 2 + ln l
// where b is not the row's maximum but kTop below it: p of the largest score is 2^kTop, from where two float16 pieces
// reach down to 2^-25. Weights 2^-40 of the largest are lost, and those below 2^-17 of it have fewer than 23 bits: a
// sum over 2^16 of them is right to 2^-24. b stays where it is until p of a score exceeds 2^(kTop + kMostLag).
//
// c s - b is rounded once, and all of a row is relative to the same b, so that its own rounding cancels. Where b is
// that large that its rounding could push p out of float16, `rest` has what was rounded off: even scores of 1e30 have
// the right p.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../common/element.cuh"
#include "sm90_f32_products.cuh"

namespace attend {

template <class Config>
struct F32Softmax {
  static constexpr int kScores = Sm90F32Shape<Config>::kScores;
  static constexpr float kTop = 14.0f, kMostLag = 1.0f;
  static constexpr float kLargeBase = 65536.0f;  // its last place is 2^-7

  float base[kRowsOfThread] = {-kInfinity, -kInfinity};  // b, the same in all lanes of a quad; -inf: no key seen
  float rest[kRowsOfThread] = {0.0f, 0.0f};              // to be added to it
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};           // l of the thread's columns

  // Scores near the end of float32, as a bias of -FLT_MAX makes them, become 2^127: times c they are still numbers.
  static __device__ __forceinline__ void limit(float (&s)[kScores]) {
    constexpr float kMost = 0x1p127f;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (fabsf(s[i]) > kMost && fabsf(s[i]) < kInfinity) s[i] = copysignf(kMost, s[i]);
    }
  }

  // The row's maximum of a tile becomes 2^kTop, if it is above b. factor: of the sums over earlier tiles.
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

  // Raises b where p of the tile would be too large. Returns whether it was: the same answer for the whole warp.
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

  // p of the tile in pieces, and their sum.
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

  // A tile of scores, -inf where a row does not see a key. Returns whether o has to be multiplied by `factor`.
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

  // After the last tile: l becomes that of the whole row.
  __device__ __forceinline__ void finish() {
    row_sum[0] = quad_sum(row_sum[0]);
    row_sum[1] = quad_sum(row_sum[1]);
  }
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }
  // Natural logarithm of the row's sum; -inf for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    constexpr float kUnit = 0x1p-14f;
    return fmaf(base[h] + kTop, kLn2, fmaf(rest[h], kLn2, logf(row_sum[h] * kUnit)));
  }
};

}  // namespace attend
