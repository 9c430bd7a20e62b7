// Online softmax over accumulators of mma.m16n8 and wgmma.m64: two rows a thread (accumulator_mask.cuh has the layout).
//
// Exponents are in base 2 and relative to the row's largest score so far: with c = scale * log2(e),
//   m = max c s,   p = 2^(c s - m),   l = sum p,   o = sum p v,   lse = (m + log2 l) * ln 2
// where c s - m is one fused multiply-add. m is the rounded product, wherever it is used, so that its rounding cancels.
// Wants c > 0; kernels of a negative scale take scores of -q (Config::kNegateScores).
//
// A row that has seen no key has m = -inf; its exponents are taken relative to 0 (exponent_base), never -inf - -inf.
// A NaN score makes p, l and o of its row NaN, whatever the maximum does with it.
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "../tiles/accumulator_mask.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "../common/warp_reduce.cuh"
#endif

namespace attend {

// In which units scores are kept, and m with them.
enum class ScoreUnits {
  kFolded,   // c is applied in the exponent, and m is c times the largest: 2^(c s - m)
  kNatural,  // as they are, and so is m: 2^(c (s - m)), an instruction more. For scores near the end of float32, as a
             // bias of -FLT_MAX makes them: c times that would be -inf, as if nothing were seen. And for large ones:
             // from 2^26 or so on, c s - m would be what rounding did to m, and 2 to that power anything
};

// What 2 is raised to. base: exponent_base() of m.
template <ScoreUnits kUnits>
[[nodiscard]] ATTEND_HOST_DEVICE float exponent(float score, float scale_log2, float base) {
  if constexpr (kUnits == ScoreUnits::kFolded) return multiply_add(score, scale_log2, -base);
  return (score - base) * scale_log2;
}

// The larger of row h's values among the thread's own.
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

// value *= factor[row]
template <int kCount>
ATTEND_HOST_DEVICE void scale_rows(float (&value)[kCount], const float (&factor)[kRowsOfThread]) {
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) value[i] *= factor[i / 2 % 2];
}

// Scores of row h become p.
template <ScoreUnits kUnits = ScoreUnits::kFolded, int kCount>
ATTEND_HOST_DEVICE void exp2_rows(float (&score)[kCount], float scale_log2, const float (&row_max)[kRowsOfThread]) {
  const float base[kRowsOfThread] = {exponent_base(row_max[0]), exponent_base(row_max[1])};
  ATTEND_UNROLL
  for (int i = 0; i < kCount; ++i) score[i] = exp2_fast(exponent<kUnits>(score[i], scale_log2, base[i / 2 % 2]));
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Over the four lanes that share a row. All lanes of the warp take part.
[[nodiscard]] __device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

[[nodiscard]] __device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// The two rows of a thread. Order of use: update() for each tile of scores, finish(), inverse_sum() and lse().
template <ScoreUnits kUnits>
struct RunningSoftmax {
  float row_max[kRowsOfThread] = {-kInfinity, -kInfinity};  // m, the same in all lanes of a quad
  float row_sum[kRowsOfThread] = {0.0f, 0.0f};              // l of the thread's own columns until finish()

  // Scores become p. rescale: what sums over earlier tiles have to be multiplied with.
  template <int kCount>
  __device__ __forceinline__ void update(float (&score)[kCount], float scale_log2, float (&rescale)[kRowsOfThread]) {
    raise_max(score, scale_log2, rescale);
    exp2_rows<kUnits>(score, scale_log2, row_max);
    add_to_sum(score);
  }

  // The parts of update(): m becomes that of all scores so far, l is rescaled,
  template <int kCount>
  __device__ __forceinline__ void raise_max(const float (&score)[kCount], float scale_log2,
                                            float (&rescale)[kRowsOfThread]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      const float tile_max = quad_max(thread_row_max(score, h));
      rescale[h] = raise_row(h, in_units(tile_max, scale_log2), scale_log2);
    }
  }
  // The largest of a tile's values in the units of m,
  [[nodiscard]] static __device__ __forceinline__ float in_units(float largest, float scale_log2) {
    return kUnits == ScoreUnits::kFolded ? largest * scale_log2 : largest;
  }
  // and by how many powers of two it exceeds that of row h. NaN where neither has seen anything.
  [[nodiscard]] __device__ __forceinline__ float outgrown(int h, float tile_max, float scale_log2) const {
    const float distance = tile_max - row_max[h];
    return kUnits == ScoreUnits::kFolded ? distance : distance * scale_log2;
  }
  // The same of row h, where the largest of a tile is known in the units of m. Returns rescale.
  [[nodiscard]] __device__ __forceinline__ float raise_row(int h, float tile_max, float scale_log2) {
    const float old_max = row_max[h];
    row_max[h] = fmaxf(old_max, tile_max);
    const float fallen = old_max - exponent_base(row_max[h]);
    const float rescale = exp2_fast(kUnits == ScoreUnits::kFolded ? fallen : fallen * scale_log2);
    row_sum[h] *= rescale;
    return rescale;
  }
  // and p is added to it.
  template <int kCount>
  __device__ __forceinline__ void add_to_sum(const float (&p)[kCount]) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] += thread_row_sum(p, h);
  }

  // After the last tile: l of the whole row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) row_sum[h] = quad_sum(row_sum[h]);
  }

  // 1 / l; 0 for a row that has seen nothing.
  [[nodiscard]] __device__ __forceinline__ float inverse_sum(int h) const {
    return inverse_or_zero(row_sum[h]);
  }

  // Natural logarithm of sum exp(scale * score); -inf for a row that has seen nothing. scale: what a value is to be
  // multiplied with, where kNatural keeps values that are not scores yet (c = scale log2(e)).
  [[nodiscard]] __device__ __forceinline__ float lse(int h, float scale = 1.0f) const {
    if (row_sum[h] == 0.0f) return -kInfinity;
    if constexpr (kUnits == ScoreUnits::kFolded) return (row_max[h] + log2_fast(row_sum[h])) * kLn2;
    return multiply_add(row_max[h], scale, log2_fast(row_sum[h]) * kLn2);
  }
};

using OnlineSoftmax = RunningSoftmax<ScoreUnits::kFolded>;

#endif

}  // namespace attend
