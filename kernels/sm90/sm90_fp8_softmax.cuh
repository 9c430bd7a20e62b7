// Online softmax of a consumer of sm90_fp8_forward, with two query rows per thread. ../attention/online_softmax.cuh has
// the equations. Let c be the factor that turns a tile's scores s into exponents of 2. Then
//   p = 2^(c s - b),   l = sum p,   lse = b ln 2 + ln l.
// When b is set, it is the row maximum of c s minus kTop, so the largest p is then 2^kTop. e4m3 represents numbers from
// 448 down to 2^-6 with 4 bits, and smaller ones in steps of 2^-9.
//
// p is computed before the maximum of a tile is known, with the b of earlier tiles (speculation, as in
// sm90_softmax.cuh). If a partial sum of the thread's p exceeds 448, some p may be too large. Then b is raised, and p
// is computed again. The partial sums have at most 8 values, so that equal scores do not count as too large.
//
// l is the sum of p before rounding, and lse follows from it. o is divided by the sum of the rounded p, which the
// tensor cores compute (kFp8SumColumns). So the rounding error of a p that dominates its row cancels in o.
//
// c s - b is rounded once. All values of a row subtract the same b, so the rounding error of b cancels.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../common/element.cuh"
#include "sm90_fp8_products.cuh"

namespace attend {

template <class Config>
struct Fp8Softmax {
  static constexpr int kScores = Sm90Fp8Shape<Config>::kScores;
  static constexpr int kFours = Sm90Fp8Shape<Config>::kFours;
  static constexpr int kParts = 4;  // partial sums of a row
  static constexpr float kTop = 5.0f;

  float base[kRowsOfThread] = {-kInfinity, -kInfinity};  // b, equal in all lanes of a quad; -inf before the first
                                                         // visible key
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};           // l, summed over the columns of this thread only

  // Raises b so that the largest p of the tile is 2^kTop. `factor` returns the factor for l and o of earlier tiles.
  __device__ __forceinline__ void raise(const float (&s)[kScores], float c, float (&factor)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      factor[h] = 1.0f;
      const float new_base = fmaf(quad_max(thread_row_max(s, h)), c, -kTop);
      if (!(new_base > base[h])) continue;
      factor[h] = exp2_fast(base[h] - new_base);
      base[h] = new_base;
      row_sum[h] *= factor[h];
    }
  }

  // Computes p of the tile, and its sum for each row. Returns whether no p is too large. A group of four values of p
  // has the scores 0, 1, 4 and 5 that follow its first score, which all belong to one row.
  [[nodiscard]] static __device__ __forceinline__ bool exponentials(const float (&s)[kScores], float c,
                                                                    const float (&from)[kRowsOfThread],
                                                                    uint32 (&p)[kFours], float (&sum)[kRowsOfThread]) {
    float part[kRowsOfThread][kParts];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int h = i % 2, of_row = i / 2, first = 8 * of_row + 2 * h;
      const float p0 = exp2_fast(fmaf(s[first], c, -from[h])), p1 = exp2_fast(fmaf(s[first + 1], c, -from[h]));
      const float p2 = exp2_fast(fmaf(s[first + 4], c, -from[h])), p3 = exp2_fast(fmaf(s[first + 5], c, -from[h]));
      p[i] = pack_e4m3(p0, p1, p2, p3);
      float& to = part[h][of_row % kParts];
      to = of_row < kParts ? p0 + p1 : to + p0 + p1;
      to = to + p2 + p3;
    }
    bool is_good = true;
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float(&of_row)[kParts] = part[h];
      is_good &= fmaxf(fmaxf(of_row[0], of_row[1]), fmaxf(of_row[2], of_row[3])) <= kE4M3Largest;
      sum[h] = (of_row[0] + of_row[1]) + (of_row[2] + of_row[3]);
    }
    return is_good;
  }
  __device__ __forceinline__ void add(const float (&sum)[kRowsOfThread]) {
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // Processes a tile for which b must be set first. Hidden keys have scores of -inf.
  __device__ __forceinline__ void update_after_maximum(const float (&s)[kScores], float c, uint32 (&p)[kFours],
                                                       float (&factor)[kRowsOfThread]) {
    raise(s, c, factor);
    float sum[kRowsOfThread];
    (void)exponentials(s, c, {exponent_base(base[0]), exponent_base(base[1])}, p, sum);
    add(sum);
  }

  // Processes a later tile. Returns whether o must be multiplied by `factor`. All lanes of the warp get the same
  // result. A b of -inf makes p infinite or NaN, which is not good.
  [[nodiscard]] __device__ __forceinline__ bool update(const float (&s)[kScores], float c, uint32 (&p)[kFours],
                                                       float (&factor)[kRowsOfThread]) {
    float sum[kRowsOfThread];
    const bool is_good = exponentials(s, c, base, p, sum);
    const bool raises = !__all_sync(kAllLanes, is_good);
    if (raises) {
      update_after_maximum(s, c, p, factor);
    } else {
      add(sum);
    }
    return raises;
  }

  // Finishes the softmax after the last key tile: l becomes the sum over the complete row.
  __device__ __forceinline__ void finish() {
    row_sum[0] = quad_sum(row_sum[0]);
    row_sum[1] = quad_sum(row_sum[1]);
  }
  // Returns the natural logarithm of the sum of exp(score), or -inf for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    return (base[h] + log2_fast(row_sum[h])) * kLn2;
  }
};

}  // namespace attend
