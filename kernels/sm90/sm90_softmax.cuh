// Online softmax of a consumer's two rows a thread (../common/online_softmax.cuh has the equations), with few
// instructions an element: beside running matrix products they, and not the products, are what a tile waits for.
//
// What is subtracted from scores, m, need not be their maximum, if l and o are relative to the same m. So
//   kSpeculate   p is computed with the m there is, without looking for the maximum. If the thread's sum over the tile
//                stays below 2^kMaxLag, no p was larger, and all is well; else the maximum is found, m raised, and p
//                computed anew from the scores, which are still there
//   otherwise    the maximum is found first, but m raised only if a score has outgrown it by more than 2^kMaxLag
// Before the first visible key m is -inf, and the slow way is taken.
#pragma once

#include "../common/accumulator_scores.cuh"
#include "../common/element.cuh"
#include "../common/lagging_softmax.cuh"

namespace attend {

template <class Config>
struct Sm90Softmax {
  using Element = ElementOf<Config>;
  static constexpr int kScores = Config::kBlockN / 2;
  static constexpr ScoreUnits kUnits = kScoreUnits<Config>;
  static constexpr float kLargestSum = 256.0f;  // 2^kMaxLag
  static_assert(kMaxLag == 8.0f);

  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m, the same in all lanes of a quad
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l of the thread's own columns

  // m is brought to the tile's maximum. rescale: what sums over earlier tiles have to be multiplied with.
  __device__ __forceinline__ void raise(const float (&s)[kScores], float scale_log2, float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) raise_to(h, tile_max(s, h, scale_log2), scale_log2, rescale);
  }
  __device__ __forceinline__ void raise_to(int h, float new_max, float scale_log2, float (&rescale)[kRowsOfThread]) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, new_max);
    const float fall = old_max - exponent_base(row_max[h]);
    rescale[h] = exp2_fast(kUnits == ScoreUnits::kFolded ? fall : fall * scale_log2);
    row_sum[h] *= rescale[h];
  }
  // In the units of m.
  [[nodiscard]] static __device__ __forceinline__ float tile_max(const float (&s)[kScores], int h, float scale_log2) {
    const float largest = quad_max(thread_row_max(s, h));
    return kUnits == ScoreUnits::kFolded ? largest * scale_log2 : largest;
  }

  // p of the tile, as pairs, and its sums.
  __device__ __forceinline__ void exponentials(const float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2],
                                               float (&sum)[kRowsOfThread]) const {
    const float base[kRowsOfThread] = {exponent_base(row_max[0]), exponent_base(row_max[1])};
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float low = exp2_fast(exponent<kUnits>(s[2 * i], scale_log2, base[i % 2]));
      const float high = exp2_fast(exponent<kUnits>(s[2 * i + 1], scale_log2, base[i % 2]));
      sum[i % 2] += low;
      sum[i % 2] += high;
      p[i] = Element::pack(low, high);
    }
  }
  // The same in the place of s, for whoever has no registers for p yet.
  __device__ __forceinline__ void exponentials(float (&s)[kScores], float scale_log2,
                                               float (&sum)[kRowsOfThread]) const {
    exp2_rows<kUnits>(s, scale_log2, row_max);
    sum[0] = thread_row_sum(s, 0);
    sum[1] = thread_row_sum(s, 1);
  }
  __device__ __forceinline__ void add(const float (&sum)[kRowsOfThread]) {
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }

  // The first tile. There is no o yet.
  __device__ __forceinline__ void begin(const float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2]) {
    float rescale[kRowsOfThread], sum[kRowsOfThread];
    raise(s, scale_log2, rescale);
    exponentials(s, scale_log2, p, sum);
    add(sum);
  }

  // A further tile. Returns, for the whole warp alike, whether o has to be multiplied with `rescale`.
  [[nodiscard]] __device__ __forceinline__ bool speculate(const float (&s)[kScores], float scale_log2,
                                                          uint32 (&p)[kScores / 2], float (&rescale)[kRowsOfThread]) {
    float sum[kRowsOfThread];
    exponentials(s, scale_log2, p, sum);
    bool is_good = true;  // false also for NaN
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) is_good &= sum[h] <= (row_max[h] == -kInfinity ? -1.0f : kLargestSum);
    const bool raises = !__all_sync(0xffffffffu, is_good);
    if (raises) {
      raise(s, scale_log2, rescale);
      exponentials(s, scale_log2, p, sum);
    }
    add(sum);
    return raises;
  }

  // The same with the maximum first.
  [[nodiscard]] __device__ __forceinline__ bool follow_max(const float (&s)[kScores], float scale_log2,
                                                           float (&rescale)[kRowsOfThread]) {
    constexpr float kLag = kUnits == ScoreUnits::kFolded ? kMaxLag : kMaxLag * kLn2;
    float new_max[kRowsOfThread];
    bool has_outgrown = false;
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      new_max[h] = tile_max(s, h, scale_log2);
      has_outgrown |= new_max[h] > row_max[h] + kLag;
    }
    const bool raises = __any_sync(0xffffffffu, has_outgrown);
    if (raises) {
#pragma unroll
      for (int h = 0; h < kRowsOfThread; ++h) raise_to(h, new_max[h], scale_log2, rescale);
    }
    return raises;
  }

  // A further tile: p, here or by pack_late(). Returns whether o has to be multiplied with `rescale`.
  [[nodiscard]] __device__ __forceinline__ bool update(float (&s)[kScores], float scale_log2, uint32 (&p)[kScores / 2],
                                                       float (&rescale)[kRowsOfThread]) {
    if constexpr (Config::kSpeculate) {
      return speculate(s, scale_log2, p, rescale);
    } else {
      float sum[kRowsOfThread];
      const bool raises = follow_max(s, scale_log2, rescale);
      if constexpr (Config::kOverlap) {
        exponentials(s, scale_log2, sum);
      } else {
        exponentials(s, scale_log2, p, sum);
      }
      add(sum);
      return raises;
    }
  }
  // p where update() left it in the place of s: the tensor cores were still reading the registers that it goes to.
  __device__ __forceinline__ void pack_late(const float (&s)[kScores], uint32 (&p)[kScores / 2]) const {
    if constexpr (!Config::kSpeculate) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
    }
  }

  // After the last tile: l of the whole row, what o has to be multiplied with, lse.
  __device__ __forceinline__ void finish() {
    row_sum[0] = quad_sum(row_sum[0]);
    row_sum[1] = quad_sum(row_sum[1]);
  }
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }
  // Natural logarithm; -inf for a row that has seen nothing.
  [[nodiscard]] __device__ __forceinline__ float lse(int h) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return fmaf(log2_fast(row_sum[h]), kLn2, row_max[h]);
  }
};

}  // namespace attend
