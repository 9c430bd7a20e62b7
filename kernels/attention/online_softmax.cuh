// Online softmax over accumulators of mma.m16n8 and wgmma.m64. Each thread has two rows (accumulator_mask.cuh has the
// layout).
//
// Exponents are in base 2 and relative to the largest score of the row so far. With c = scale * log2(e),
//   m = max c s,   p = 2^(c s - m),   l = sum p,   o = sum p v,   lse = (m + log2 l) * ln 2
// where c s - m is one fused multiply-add. m is always the rounded product c s, so that its rounding error cancels. The
// formulas require c > 0. Kernels with a negative scale use scores of -q (Config::kNegateScores).
//
// A row that has seen no key has m = -inf. Its exponents are then computed relative to 0 (exponent_base), which avoids
// -inf - -inf. A NaN score makes p, l and o of its row NaN, even if the row maximum ignores the NaN.
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "../common/warp_reduce.cuh"
#endif

namespace attend {

// Units of the scores and of m.
enum class ScoreUnits {
  kFolded,   // c is applied in the exponent, so p = 2^(c s - m), and m is c times the row maximum
  kNatural,  // Scores and m are not multiplied by c, so p = 2^(c (s - m)). This takes one more instruction, and is
             // needed for very large scores. Near the end of the float32 range, for example with a bias of -FLT_MAX, c
             // s would be -inf, as if the row had seen no key. If |s| is 2^26 or more, c s - m would be only the
             // rounding error of m, and p would be arbitrary
};

// Returns the exponent of 2 in p. `base` is exponent_base() of m.
template <ScoreUnits kUnits>
[[nodiscard]] ATTEND_HOST_DEVICE float exponent(float score, float scale_log2, float base) {
  if constexpr (kUnits == ScoreUnits::kFolded) return multiply_add(score, scale_log2, -base);
  return (score - base) * scale_log2;
}

// Returns the largest of the thread's values in its row h.
template <int kCount>
[[nodiscard]] ATTEND_HOST_DEVICE float thread_row_max(const float (&value)[kCount], int h) {
  float result = larger(value[2 * h], value[2 * h + 1]);
  ATTEND_UNROLL
  for (int i = 4 + 2 * h; i < kCount; i += 4) {
    result = larger(result, larger(value[i], value[i + 1]));
  }
  return result;
}

template <int kCount>
[[nodiscard]] ATTEND_HOST_DEVICE float thread_row_sum(const float (&value)[kCount], int h) {
  float result = value[2 * h] + value[2 * h + 1];
  ATTEND_UNROLL
  for (int i = 4 + 2 * h; i < kCount; i += 4) result += value[i] + value[i + 1];
  return result;
}

// Multiplies each value by the factor of its row.
template <int kCount>
ATTEND_HOST_DEVICE void scale_rows(float (&value)[kCount], const float (&factor)[kRowsOfThread]) {
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) value[i] *= factor[i / 2 % 2];
}

// Turns scores into p, with the row maxima as given.
template <ScoreUnits kUnits = ScoreUnits::kFolded, int kCount>
ATTEND_HOST_DEVICE void exp2_rows(float (&score)[kCount], float scale_log2, const float (&row_max)[kRowsOfThread]) {
  const float base[kRowsOfThread] = {exponent_base(row_max[0]), exponent_base(row_max[1])};
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) score[i] = exp2_fast(exponent<kUnits>(score[i], scale_log2, base[i / 2 % 2]));
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Reduces a value over the four lanes that share a row. All lanes of the warp must call it.
[[nodiscard]] __device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

[[nodiscard]] __device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// The softmax of a thread's two rows. A kernel calls update() for each tile of scores, then finish(), and then
// inverse_sum() and lse().
template <ScoreUnits kUnits>
struct RunningSoftmax {
  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m of each row, the same in all four lanes that share the
                                                            // row
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l of each row. Until finish(), it covers only the columns
                                                            // of this thread

  // Turns scores into p. `rescale` receives the factor by which sums over earlier tiles must be multiplied.
  template <int kCount>
  __device__ __forceinline__ void update(float (&score)[kCount], float scale_log2, float (&rescale)[kRowsOfThread]) {
    raise_max(score, scale_log2, rescale);
    exp2_rows<kUnits>(score, scale_log2, row_max);
    add_to_sum(score);
  }

  // First step of update(). Raises m to the maximum of all scores so far, and rescales l.
  template <int kCount>
  __device__ __forceinline__ void raise_max(const float (&score)[kCount], float scale_log2,
                                            float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float tile_max = quad_max(thread_row_max(score, h));
      rescale[h] = raise_row(h, in_units(tile_max, scale_log2), scale_log2);
    }
  }
  // Returns the largest value of a tile in the units of m.
  [[nodiscard]] static __device__ __forceinline__ float in_units(float largest, float scale_log2) {
    return kUnits == ScoreUnits::kFolded ? largest * scale_log2 : largest;
  }
  // Returns by how many powers of two a tile's maximum exceeds m of row h. Returns NaN if neither the tile nor earlier
  // tiles had a visible key.
  [[nodiscard]] __device__ __forceinline__ float outgrown(int h, float tile_max, float scale_log2) const {
    const float distance = tile_max - row_max[h];
    return kUnits == ScoreUnits::kFolded ? distance : distance * scale_log2;
  }
  // Raises m of row h to the tile's maximum, which is in the units of m, and rescales l. Returns the rescale factor.
  [[nodiscard]] __device__ __forceinline__ float raise_row(int h, float tile_max, float scale_log2) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, tile_max);
    const float fallen = old_max - exponent_base(row_max[h]);
    const float rescale = exp2_fast(kUnits == ScoreUnits::kFolded ? fallen : fallen * scale_log2);
    row_sum[h] *= rescale;
    return rescale;
  }
  // Last step of update(). Adds p to l.
  template <int kCount>
  __device__ __forceinline__ void add_to_sum(const float (&p)[kCount]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] += thread_row_sum(p, h);
  }

  // Completes l of each row. Called after the last tile.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] = quad_sum(row_sum[h]);
  }

  // Returns 1 / l, or 0 if the row has seen no key.
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }

  // Returns the natural logarithm of sum exp(scale * score), or -inf if the row has seen no key. With kNatural, `scale`
  // is the factor that turns values into scores, so c = scale log2(e). With kFolded, it is unused.
  [[nodiscard]] __device__ __forceinline__ float lse(int h, float scale = 1.0f) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return multiply_add(row_max[h], scale, log2_fast(row_sum[h]) * kLn2);
  }
};

using OnlineSoftmax = RunningSoftmax<ScoreUnits::kFolded>;

#endif

}  // namespace attend
