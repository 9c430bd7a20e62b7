// Online softmax over accumulators of mma.m16n8 and wgmma.m64: two rows for each thread (accumulator_mask.cuh has the
// layout).
//
// Exponents are in base 2 and relative to the row maximum so far: with c = scale * log2(e),
//   m = max c s,   p = 2^(c s - m),   l = sum p,   o = sum p v,   lse = (m + log2 l) * ln 2
// where c s - m is one fused multiply-add. m is always the rounded product, so that its rounding error cancels.
// Requires c > 0; kernels with a negative scale use scores of -q (Config::kNegateScores).
//
// A row that has seen no key has m = -inf. Its exponents are relative to 0 (exponent_base), which avoids -inf - -inf.
// A NaN score makes p, l and o of its row NaN, even if the row maximum ignores the NaN.
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "../common/warp_reduce.cuh"
#endif

namespace attend {

// The units of scores and of m.
enum class ScoreUnits {
  kFolded,   // c is applied in the exponent, and m is c times the row maximum: 2^(c s - m)
  kNatural,  // scores and m are not scaled: 2^(c (s - m)), one more instruction. Needed for two kinds of scores. Near
             // the end of float32, as with a bias of -FLT_MAX, c s would be -inf, as if the row had seen nothing. From
             // about 2^26 on, c s - m would be only the rounding error of m, and p would be arbitrary
};

// Returns the exponent of 2. base: exponent_base() of m.
template <ScoreUnits kUnits>
[[nodiscard]] ATTEND_HOST_DEVICE float exponent(float score, float scale_log2, float base) {
  if constexpr (kUnits == ScoreUnits::kFolded) return multiply_add(score, scale_log2, -base);
  return (score - base) * scale_log2;
}

// Returns the largest of the thread's values in row h.
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

// Computes value *= factor[row].
template <int kCount>
ATTEND_HOST_DEVICE void scale_rows(float (&value)[kCount], const float (&factor)[kRowsOfThread]) {
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) value[i] *= factor[i / 2 % 2];
}

// Turns scores into p.
template <ScoreUnits kUnits = ScoreUnits::kFolded, int kCount>
ATTEND_HOST_DEVICE void exp2_rows(float (&score)[kCount], float scale_log2, const float (&row_max)[kRowsOfThread]) {
  const float base[kRowsOfThread] = {exponent_base(row_max[0]), exponent_base(row_max[1])};
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) score[i] = exp2_fast(exponent<kUnits>(score[i], scale_log2, base[i / 2 % 2]));
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Reduces over the four lanes that share a row. All lanes of the warp take part.
[[nodiscard]] __device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

[[nodiscard]] __device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// The softmax of a thread's two rows. Order of use: update() for each tile of scores, finish(), inverse_sum() and
// lse().
template <ScoreUnits kUnits>
struct RunningSoftmax {
  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m, the same in all lanes of a quad
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l over the thread's own columns until finish()

  // Turns scores into p. rescale: receives the factor for sums over earlier tiles.
  template <int kCount>
  __device__ __forceinline__ void update(float (&score)[kCount], float scale_log2, float (&rescale)[kRowsOfThread]) {
    raise_max(score, scale_log2, rescale);
    exp2_rows<kUnits>(score, scale_log2, row_max);
    add_to_sum(score);
  }

  // First part of update(): raises m to the maximum of all scores so far, and rescales l.
  template <int kCount>
  __device__ __forceinline__ void raise_max(const float (&score)[kCount], float scale_log2,
                                            float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float tile_max = quad_max(thread_row_max(score, h));
      rescale[h] = raise_row(h, in_units(tile_max, scale_log2), scale_log2);
    }
  }
  // Returns a tile's largest value in the units of m.
  [[nodiscard]] static __device__ __forceinline__ float in_units(float largest, float scale_log2) {
    return kUnits == ScoreUnits::kFolded ? largest * scale_log2 : largest;
  }
  // Returns by how many powers of two a tile's maximum exceeds m of row h. NaN if neither has seen a key.
  [[nodiscard]] __device__ __forceinline__ float outgrown(int h, float tile_max, float scale_log2) const {
    const float distance = tile_max - row_max[h];
    return kUnits == ScoreUnits::kFolded ? distance : distance * scale_log2;
  }
  // As raise_max() for row h, given the tile's maximum in the units of m. Returns the rescale factor.
  [[nodiscard]] __device__ __forceinline__ float raise_row(int h, float tile_max, float scale_log2) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, tile_max);
    const float fallen = old_max - exponent_base(row_max[h]);
    const float rescale = exp2_fast(kUnits == ScoreUnits::kFolded ? fallen : fallen * scale_log2);
    row_sum[h] *= rescale;
    return rescale;
  }
  // Last part of update(): adds p to l.
  template <int kCount>
  __device__ __forceinline__ void add_to_sum(const float (&p)[kCount]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] += thread_row_sum(p, h);
  }

  // Call after the last tile: completes l of each row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] = quad_sum(row_sum[h]);
  }

  // Returns 1 / l, or 0 for a row that has seen no key.
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }

  // Returns the natural logarithm of sum exp(scale * score), or -inf for a row that has seen no key. scale: with
  // kNatural, the factor that turns the kept values into scores (c = scale log2(e)).
  [[nodiscard]] __device__ __forceinline__ float lse(int h, float scale = 1.0f) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return multiply_add(row_max[h], scale, log2_fast(row_sum[h]) * kLn2);
  }
};

using OnlineSoftmax = RunningSoftmax<ScoreUnits::kFolded>;

#endif

}  // namespace attend
