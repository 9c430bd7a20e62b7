// Online softmax of a consumer warpgroup, with two query rows per thread. ../attention/online_softmax.cuh has the
// equations. This code minimises the number of instructions per score. This number determines the time of a key tile,
// because the matrix products overlap with the softmax.
//
// m is the value subtracted from the scores of a row. It need not be the row maximum, if l and o are relative to the
// same m. If kSpeculate is set, p is computed with the current m, before the row maximum is known. If the thread's sum
// of p over the tile is at most 2^kMaxLag, no p exceeds 2^kMaxLag, and p is used. Otherwise the maximum is computed, m
// is raised, and p is computed again from the scores, which are still in registers. If kSpeculate is not set, the
// maximum is computed first, but m is raised only if some p would exceed 2^kMaxLag. Before the first visible key m is
// -inf, so the maximum must be computed.
//
// In the units kFolded (../attention/online_softmax.cuh), one instruction computes the exponent as c s minus the
// rounded product c m, where c is scale_log2. For large scores the rounding error of c m is large too: an error of e
// multiplies p by 2^e. If |c m| exceeds kMostFolded, the code computes the maximum, and p = 2^(c (s - m)). This form is
// exact for scores near m, so p is correct even for scores of 1e30.
//
// All rows of a warp share the decision whether m is raised, except if kIsCached is set. In that mode each row decides
// alone, so the bits of a row do not depend on the other rows of its warp.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../attention/lagging_softmax.cuh"
#include "../common/element.cuh"

namespace attend {

template <class Config>
struct Sm90Softmax {
  using Element = ElementOf<Config>;
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr ScoreUnits kUnits = kScoreUnits<Config>;
  static constexpr float kLargestSum = 256.0f;  // 2^kMaxLag
  static_assert(kMaxLag == 8.0f);
  static constexpr float kMostFolded =
      4096.0f;  // limit of |c m|: the relative rounding error of p is then at most 2^-12 / 2 * ln 2
  static constexpr bool kByRow = Config::kIsCached;

  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m in the units of s; equal in all lanes of a quad
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l, summed over the columns of this thread only

  // Raises m to the maximum of the tile. `rescale` returns the factor for l and o of earlier tiles.
  __device__ __forceinline__ void raise(const float (&s)[kScores], float scale_log2, float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) raise_to(h, tile_max(s, h), scale_log2, rescale);
  }
  __device__ __forceinline__ void raise_to(int h, float new_max, float scale_log2, float (&rescale)[kRowsOfThread]) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, new_max);
    const float new_base = exponent_base(row_max[h]);
    const bool is_folded = folds(h, scale_log2);  // if true, exponents subtract a rounded product both before and after
                                                  // m is raised
    const float fall = is_folded ? __fmul_rn(old_max, scale_log2) - __fmul_rn(new_base, scale_log2)
                                 : (old_max - new_base) * scale_log2;
    rescale[h] = exp2_fast(fall);
    row_sum[h] *= rescale[h];
  }
  [[nodiscard]] static __device__ __forceinline__ float tile_max(const float (&s)[kScores], int h) {
    return quad_max(thread_row_max(s, h));
  }
  // Returns whether the exponents of row h may subtract a rounded product. Returns false before the first visible key,
  // and if m is NaN or infinite.
  [[nodiscard]] __device__ __forceinline__ bool folds(int h, float scale_log2) const {
    return kUnits == ScoreUnits::kFolded && fabsf(row_max[h] * scale_log2) <= kMostFolded;
  }
  // Returns whether folds() holds for all rows of the warp. Returns false if kByRow is set, because the decision must
  // not depend on other rows.
  [[nodiscard]] __device__ __forceinline__ bool all_fold(float scale_log2) const {
    if constexpr (kByRow) return false;
    return __all_sync(kAllLanes, folds(0, scale_log2) && folds(1, scale_log2));
  }
  // Returns whether the condition holds in any lane of the quad that shares the row. All four lanes get the same
  // result.
  [[nodiscard]] static __device__ __forceinline__ bool any_in_quad(bool is_so) {
    return (__ballot_sync(kAllLanes, is_so) >> threadIdx.x % 32 / 4 * 4 & 0xf) != 0;
  }

  // Returns the value that is subtracted from the scores of row h.
  template <ScoreUnits kUnitsOfBase>
  [[nodiscard]] __device__ __forceinline__ float base_of(int h, float scale_log2) const {
    const float base = exponent_base(row_max[h]);
    return kUnitsOfBase == ScoreUnits::kFolded ? __fmul_rn(base, scale_log2) : base;
  }
  // Computes p of the tile, packed in pairs, and the sum of p of each row.
  template <ScoreUnits kUnitsOfBase>
  __device__ __forceinline__ void exponentials(const float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2],
                                               float (&sum)[kRowsOfThread]) const {
    const float base[kRowsOfThread] = {base_of<kUnitsOfBase>(0, scale_log2), base_of<kUnitsOfBase>(1, scale_log2)};
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float low = exp2_fast(exponent<kUnitsOfBase>(s[2 * i], scale_log2, base[i % 2]));
      const float high = exp2_fast(exponent<kUnitsOfBase>(s[2 * i + 1], scale_log2, base[i % 2]));
      sum[i % 2] += low;
      sum[i % 2] += high;
      p[i] = Element::pack(low, high);
    }
  }
  // Computes the same p and sums, but overwrites s with p. Used while running products still read the registers of p.
  template <ScoreUnits kUnitsOfBase>
  __device__ __forceinline__ void exponentials(float (&s)[kScores], float scale_log2,
                                               float (&sum)[kRowsOfThread]) const {
    const float base[kRowsOfThread] = {base_of<kUnitsOfBase>(0, scale_log2), base_of<kUnitsOfBase>(1, scale_log2)};
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(exponent<kUnitsOfBase>(s[i], scale_log2, base[i / 2 % 2]));
    sum[0] = thread_row_sum(s, 0);
    sum[1] = thread_row_sum(s, 1);
  }
  __device__ __forceinline__ void add(const float (&sum)[kRowsOfThread]) {
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // Processes the first key tile, before o has any contribution.
  __device__ __forceinline__ void begin(const float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2]) {
    float rescale[kRowsOfThread], sum[kRowsOfThread];
    raise(s, scale_log2, rescale);
    if (kUnits == ScoreUnits::kFolded && all_fold(scale_log2)) {
      exponentials<ScoreUnits::kFolded>(s, scale_log2, p, sum);
    } else {
      exponentials<ScoreUnits::kNatural>(s, scale_log2, p, sum);
    }
    add(sum);
  }

  // Processes a later key tile. First computes p with the current m. Returns whether o must be multiplied by `rescale`.
  // All lanes of the warp get the same result.
  [[nodiscard]] __device__ __forceinline__ bool speculate(const float (&s)[kScores], float scale_log2,
                                                          uint32 (&p)[kScores / 2], float (&rescale)[kRowsOfThread]) {
    float sum[kRowsOfThread];
    exponentials<kUnits>(s, scale_log2, p, sum);
    bool is_good[kRowsOfThread];  // false if p is too large or NaN
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const bool has_base = kUnits == ScoreUnits::kFolded ? folds(h, scale_log2) : row_max[h] != -kInfinity;
      is_good[h] = sum[h] <= (has_base ? kLargestSum : -1.0f);
    }
    const bool raises = !__all_sync(kAllLanes, is_good[0] && is_good[1]);
    if (raises) {
      if constexpr (kByRow) {
        raise_rows({any_in_quad(!is_good[0]), any_in_quad(!is_good[1])}, s, scale_log2, p, sum, rescale);
      } else {
        raise(s, scale_log2, rescale);
        exponentials<ScoreUnits::kNatural>(s, scale_log2, p, sum);
      }
    }
    add(sum);
    return raises;
  }
  // One flag for each of the thread's two rows.
  struct WhichRows {
    bool of[kRowsOfThread];
  };
  // Raises m of the selected rows, and computes p and its sum again for these rows.
  __device__ __forceinline__ void raise_rows(const WhichRows& rows, const float (&s)[kScores], float scale_log2,
                                             uint32 (&p)[kScores / 2], float (&sum)[kRowsOfThread],
                                             float (&rescale)[kRowsOfThread]) {
    float base[kRowsOfThread];
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float new_max = tile_max(s, h);
      rescale[h] = 1.0f;
      if (rows.of[h]) raise_to(h, new_max, scale_log2, rescale);
      if (rows.of[h]) sum[h] = 0.0f;
      base[h] = base_of<ScoreUnits::kNatural>(h, scale_log2);
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float low = exp2_fast(exponent<ScoreUnits::kNatural>(s[2 * i], scale_log2, base[i % 2]));
      const float high = exp2_fast(exponent<ScoreUnits::kNatural>(s[2 * i + 1], scale_log2, base[i % 2]));
      if (!rows.of[i % 2]) continue;
      sum[i % 2] += low;
      sum[i % 2] += high;
      p[i] = Element::pack(low, high);
    }
  }

  // Raises m if some p of the tile would be too large for the current m. Returns whether m was raised.
  [[nodiscard]] __device__ __forceinline__ bool follow_max(const float (&s)[kScores], float scale_log2,
                                                           float (&rescale)[kRowsOfThread]) {
    float new_max[kRowsOfThread];
    bool has_outgrown[kRowsOfThread];
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      new_max[h] = tile_max(s, h);
      has_outgrown[h] = (new_max[h] - row_max[h]) * scale_log2 > kMaxLag;
    }
    const bool raises = __any_sync(kAllLanes, has_outgrown[0] || has_outgrown[1]);
    if (raises) {
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) {
        rescale[h] = 1.0f;
        if (!kByRow || has_outgrown[h]) raise_to(h, new_max[h], scale_log2, rescale);
      }
    }
    return raises;
  }

  // Processes a later key tile while the products of the previous tile run. If kSpeculate is set, p is written to
  // registers that these products do not read. Otherwise p overwrites s, and pack_late() packs it when the products are
  // complete. Returns whether o must be multiplied by `rescale`.
  [[nodiscard]] __device__ __forceinline__ bool update_under_products(float (&s)[kScores], float scale_log2,
                                                                      uint32 (&p)[kScores / 2],
                                                                      float (&rescale)[kRowsOfThread]) {
    if constexpr (Config::kSpeculate) {
      return speculate(s, scale_log2, p, rescale);
    } else {
      float sum[kRowsOfThread];
      const bool raises = follow_max(s, scale_log2, rescale);
      if (kUnits == ScoreUnits::kFolded && all_fold(scale_log2)) {
        exponentials<ScoreUnits::kFolded>(s, scale_log2, sum);
      } else {
        exponentials<ScoreUnits::kNatural>(s, scale_log2, sum);
      }
      add(sum);
      return raises;
    }
  }

  // Processes a later key tile when no products run. Computes p, and returns whether o must be multiplied by `rescale`.
  [[nodiscard]] __device__ __forceinline__ bool update(float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2],
                                                       float (&rescale)[kRowsOfThread]) {
    if constexpr (Config::kSpeculate) {
      return speculate(s, scale_log2, p, rescale);
    } else {
      float sum[kRowsOfThread];
      const bool raises = follow_max(s, scale_log2, rescale);
      if (kUnits == ScoreUnits::kFolded && all_fold(scale_log2)) {
        exponentials<ScoreUnits::kFolded>(s, scale_log2, p, sum);
      } else {
        exponentials<ScoreUnits::kNatural>(s, scale_log2, p, sum);
      }
      add(sum);
      return raises;
    }
  }
  // Packs p when the running products have read the previous p. update_under_products() left the new p in s.
  __device__ __forceinline__ void pack_late(const float (&s)[kScores], uint32 (&p)[kScores / 2]) const {
    if constexpr (!Config::kSpeculate) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
    }
  }

  // Finishes the softmax after the last key tile: l becomes the sum over the complete row, and m is converted to an
  // exponent of 2 if the units are kFolded.
  __device__ __forceinline__ void finish(float scale_log2) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      row_sum[h] = quad_sum(row_sum[h]);
      if constexpr (kUnits == ScoreUnits::kFolded) row_max[h] *= scale_log2;
    }
  }
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }
  // Returns the natural logarithm of the sum of exp(score), or -inf for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return fmaf(log2_fast(row_sum[h]), kLn2, row_max[h]);
  }
};

}  // namespace attend
