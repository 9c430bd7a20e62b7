// Online softmax of a consumer, with two rows per thread; ../attention/online_softmax.cuh has the equations. Few
// instructions per element matter here: they limit the time of a tile, while the matrix products overlap with them.
//
// m is the value subtracted from scores. It need not be their maximum, as long as l and o are relative to the same m:
//   kSpeculate   p is computed with the current m, before the maximum is known. If the thread's sum over the tile is at
//                most 2^kMaxLag, no p is larger than that, and p is used. Otherwise the maximum is computed, m is
//                raised, and p is computed again from the scores, which are still in registers.
//   otherwise    the maximum is computed first, but m is raised only if p of a score would exceed 2^kMaxLag.
// Before the first visible key m is -inf, so the maximum is computed.
//
// kFolded (../attention/online_softmax.cuh) subtracts the rounded product c m from c s, in one instruction. If scores
// are large, the error of this rounding is large, too: an error of e multiplies p by 2^e. If |c m| exceeds kMostFolded,
// the maximum is computed, and p is 2^(c (s - m)). This is exact for scores near m: even scores of 1e30 have the right
// p.
//
// The rows of a warp share all these decisions, except with kIsCached. There each row has a separate m. So the bits of
// a row do not depend on the other rows of its warp.
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

  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m in units of s, equal in all lanes of a quad
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l of the thread's columns

  // Raises m to the tile's maximum. rescale: factor for the sums over earlier tiles.
  __device__ __forceinline__ void raise(const float (&s)[kScores], float scale_log2, float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) raise_to(h, tile_max(s, h), scale_log2, rescale);
  }
  __device__ __forceinline__ void raise_to(int h, float new_max, float scale_log2, float (&rescale)[kRowsOfThread]) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, new_max);
    const float new_base = exponent_base(row_max[h]);
    const bool is_folded = folds(h, scale_log2);  // then the base is a rounded product, before and after
    const float fall = is_folded ? __fmul_rn(old_max, scale_log2) - __fmul_rn(new_base, scale_log2)
                                 : (old_max - new_base) * scale_log2;
    rescale[h] = exp2_fast(fall);
    row_sum[h] *= rescale[h];
  }
  [[nodiscard]] static __device__ __forceinline__ float tile_max(const float (&s)[kScores], int h) {
    return quad_max(thread_row_max(s, h));
  }
  // Returns whether p of row h may subtract a rounded product. False before the first visible key, and with NaN or inf.
  [[nodiscard]] __device__ __forceinline__ bool folds(int h, float scale_log2) const {
    return kUnits == ScoreUnits::kFolded && fabsf(row_max[h] * scale_log2) <= kMostFolded;
  }
  // Returns the same for all rows of the warp. kByRow: no row folds in a tile that may raise its m.
  [[nodiscard]] __device__ __forceinline__ bool all_fold(float scale_log2) const {
    if constexpr (kByRow) return false;
    return __all_sync(kAllLanes, folds(0, scale_log2) && folds(1, scale_log2));
  }
  // Returns whether the condition holds in any lane of the quad that shares the row. All lanes get the same answer.
  [[nodiscard]] static __device__ __forceinline__ bool any_in_quad(bool is_so) {
    return (__ballot_sync(kAllLanes, is_so) >> threadIdx.x % 32 / 4 * 4 & 0xf) != 0;
  }

  // Returns the value subtracted from the scores of row h.
  template <ScoreUnits kUnitsOfBase>
  [[nodiscard]] __device__ __forceinline__ float base_of(int h, float scale_log2) const {
    const float base = exponent_base(row_max[h]);
    return kUnitsOfBase == ScoreUnits::kFolded ? __fmul_rn(base, scale_log2) : base;
  }
  // Computes p of the tile, packed in pairs, and the sums of p.
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
  // Does the same but overwrites s with p, for callers whose registers of p are still in use.
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

  // Processes the first tile, when there is no o yet.
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

  // Processes a later tile, first with the current m. Returns whether o has to be multiplied by `rescale`. The answer
  // is the same for the complete warp.
  [[nodiscard]] __device__ __forceinline__ bool speculate(const float (&s)[kScores], float scale_log2,
                                                          uint32 (&p)[kScores / 2], float (&rescale)[kRowsOfThread]) {
    float sum[kRowsOfThread];
    exponentials<kUnits>(s, scale_log2, p, sum);
    bool is_good[kRowsOfThread];  // also false for NaN
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
  // Selects some of the thread's rows.
  struct WhichRows {
    bool of[kRowsOfThread];
  };
  // Raises m of the selected rows, and computes their p and its sum again.
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

  // Raises m if p of the tile would be too large for the current one. Returns whether it was raised.
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

  // Processes a later tile while products of the previous tile run. With kSpeculate its p has other registers than
  // theirs. Otherwise s becomes p, and pack_late() packs it when the products are done. Returns whether o has to be
  // multiplied by `rescale`.
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

  // Computes p of a later tile. Returns whether o has to be multiplied by `rescale`.
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
  // Packs p, which update_under_products() left in s because products were still reading the registers of p.
  __device__ __forceinline__ void pack_late(const float (&s)[kScores], uint32 (&p)[kScores / 2]) const {
    if constexpr (!Config::kSpeculate) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
    }
  }

  // Finishes the softmax after the last tile: l becomes the sum of the complete row, and m gets the units of an
  // exponent.
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
  // Returns the natural logarithm of the row's sum, or -inf for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return fmaf(log2_fast(row_sum[h]), kLn2, row_max[h]);
  }
};

}  // namespace attend
