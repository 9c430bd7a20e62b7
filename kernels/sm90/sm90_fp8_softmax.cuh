// Online softmax of a consumer of sm90_fp8_forward, with two query rows per thread. ../attention/online_softmax.cuh has
// the equations. Let c be the factor that turns a tile's scores s into exponents of 2. Then
//   p = 2^(c s - b),   l = sum p,   lse = b ln 2 + ln l.
// When b is set, it is the row maximum of c s minus kTop, so the largest p is then 2^kTop. e4m3 represents numbers from
// 448 down to 2^-6 with 4 bits, and smaller ones in steps of 2^-9. A power of two is not rounded, so a key that has a
// large part of its row's sum should be at the maximum when b is set.
//
// Without kSpeculate, b follows the maximum of each tile. Two instructions for four scores find it: integers have a
// maximum of three, and the bits of floats that are not negative have the order of integers.
//
// With kSpeculate, p is computed before the maximum of a tile is known, with the b of earlier tiles (as in
// sm90_softmax.cuh). b is raised, and p is computed again, if some p may exceed 448, or if it exceeds 2^kTop and has a
// large part of the thread's sum. Sums of at most 8 values of p decide this.
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
  static constexpr float kTop = Config::kSpeculate ? 5.0f : 8.0f;
  static constexpr float kSmallSum = 34.0f;  // if a sum is at most this, no p exceeds 2^5 after rounding
  static constexpr float kLargePart = 0.5f;  // of the thread's sum over earlier tiles

  float base[kRowsOfThread] = {-kInfinity, -kInfinity};  // b, equal in all lanes of a quad; -inf before the first
                                                         // visible key
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};           // l, summed over the columns of this thread only

  // Returns the largest of three integers, which are the bits of floats.
  [[nodiscard]] static __device__ __forceinline__ int largest_of(int a, int b, int c) { return max(max(a, b), c); }
  [[nodiscard]] static __device__ __forceinline__ int smallest_of(int a, int b, int c) { return min(min(a, b), c); }

  // Returns the bits of the largest score of the thread's row h, if it is not negative. Otherwise returns a negative
  // number.
  [[nodiscard]] static __device__ __forceinline__ int largest_bits(const float (&s)[kScores], int h) {
    int result = max(__float_as_int(s[2 * h]), __float_as_int(s[2 * h + 1]));
#pragma unroll
    for (int i = 4 + 2 * h; i < kScores; i += 4) {
      result = largest_of(result, __float_as_int(s[i]), __float_as_int(s[i + 1]));
    }
    result = max(result, __shfl_xor_sync(kAllLanes, result, 1));
    return max(result, __shfl_xor_sync(kAllLanes, result, 2));
  }
  // Returns the bits of the largest score if all scores are negative. Their order is that of integers, reversed.
  [[nodiscard]] static __device__ __forceinline__ int largest_negative_bits(const float (&s)[kScores], int h) {
    int result = min(__float_as_int(s[2 * h]), __float_as_int(s[2 * h + 1]));
#pragma unroll
    for (int i = 4 + 2 * h; i < kScores; i += 4) {
      result = smallest_of(result, __float_as_int(s[i]), __float_as_int(s[i + 1]));
    }
    result = min(result, __shfl_xor_sync(kAllLanes, result, 1));
    return min(result, __shfl_xor_sync(kAllLanes, result, 2));
  }

  // Raises b so that the largest p of the tile is 2^kTop. `factor` returns the factor for l and o of earlier tiles.
  // Returns whether a b of the warp was raised.
  __device__ __forceinline__ bool raise(const float (&s)[kScores], float c, float (&factor)[kRowsOfThread]) {
    int largest[kRowsOfThread] = {largest_bits(s, 0), largest_bits(s, 1)};
    if (__any_sync(kAllLanes, largest[0] < 0 || largest[1] < 0)) {
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) {
        const int negative = largest_negative_bits(s, h);
        if (largest[h] < 0) largest[h] = negative;
      }
    }
    bool is_raised = false;
    float new_base[kRowsOfThread];
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      new_base[h] = fmaf(__int_as_float(largest[h]), c, -kTop);
      is_raised |= new_base[h] > base[h];
    }
    if (!__any_sync(kAllLanes, is_raised)) return false;
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      factor[h] = 1.0f;
      if (!(new_base[h] > base[h])) continue;
      factor[h] = exp2_fast(base[h] - new_base[h]);
      base[h] = new_base[h];
      row_sum[h] *= factor[h];
    }
    return true;
  }

  // Computes p of the tile, and its sum for each row. `most` returns the largest partial sum of each row. A group of
  // four values of p has the scores 0, 1, 4 and 5 that follow its first score, which all belong to one row.
  static __device__ __forceinline__ void exponentials(const float (&s)[kScores], float c,
                                                      const float (&from)[kRowsOfThread], uint32 (&p)[kFours],
                                                      float (&sum)[kRowsOfThread], float (&most)[kRowsOfThread]) {
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
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float(&of_row)[kParts] = part[h];
      most[h] = fmaxf(fmaxf(of_row[0], of_row[1]), fmaxf(of_row[2], of_row[3]));
      sum[h] = (of_row[0] + of_row[1]) + (of_row[2] + of_row[3]);
    }
  }

  // Computes p of a tile for which b is set. A row that has seen no key has b = -inf and scores of -inf.
  __device__ __forceinline__ void weigh(const float (&s)[kScores], float c, uint32 (&p)[kFours]) {
    float sum[kRowsOfThread], most[kRowsOfThread];
    exponentials(s, c, {exponent_base(base[0]), exponent_base(base[1])}, p, sum, most);
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // Processes the first tile. Hidden keys have scores of -inf.
  __device__ __forceinline__ void begin(const float (&s)[kScores], float c, uint32 (&p)[kFours]) {
    float factor[kRowsOfThread];
    (void)raise(s, c, factor);
    weigh(s, c, p);
  }

  // Processes a later tile. Returns whether o must be multiplied by `factor`. All lanes of the warp get the same
  // result.
  [[nodiscard]] __device__ __forceinline__ bool update(const float (&s)[kScores], float c, uint32 (&p)[kFours],
                                                       float (&factor)[kRowsOfThread]) {
    if constexpr (Config::kSpeculate) {
      float sum[kRowsOfThread], most[kRowsOfThread];
      exponentials(s, c, base, p, sum, most);
      bool is_good = true;  // false if b is -inf, because p is then infinite or NaN
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) {
        is_good &= most[h] <= fminf(kE4M3Largest, fmaxf(kSmallSum, kLargePart * row_sum[h]));
      }
      if (__all_sync(kAllLanes, is_good)) {
        row_sum[0] += sum[0];
        row_sum[1] += sum[1];
        return false;
      }
    }
    const bool is_raised = raise(s, c, factor);
    weigh(s, c, p);
    return is_raised;
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
