// The transform of scores: softcap, s = cap tanh(x / cap) of x = scale q.k.
//
// Kernels know it as ScoreTransform, whatever function it is, in three forms:
//   exact       the score in float32, with the library's tanh: CUDA cores
//   factored    unit_value() and cap() apart, with a fast tanh for 16-bit types: the factor joins the one of the
//               softmax's exponent
//   reciprocal  tanh x = 1 - 2 r with r = 1 / (e^2x + 1): the constant goes into lse, the factor into the exponent. The
//               derivative is 4 (r - r^2). Its absolute error is 2^-24 of 2 cap, far below the rounding of p while cap
//               is at most kLargestCapByReciprocal
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"
#include "../common/portable.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cmath>
#endif

namespace attend {

// tanh(x), relative error below 2^-18, absolute below 2^-22: two instructions of the special function unit, where the
// library's tanhf branches. Near 0, where 1 - 2 / (e^2x + 1) would cancel, the first terms of the series.
[[nodiscard]] ATTEND_HOST_DEVICE float tanh_fast(float x) {
  constexpr float kNearZero = 0.125f;
  const float square = x * x;
  const float series = x * multiply_add(square, multiply_add(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  const float whole = multiply_add(-2.0f, reciprocal_fast(exp2_fast(x * (2.0f * kLog2E)) + 1.0f), 1.0f);
  return square < kNearZero * kNearZero ? series : whole;  // NaN and infinities are whole's
}

// Below it tanh x is x to the last bit: x (1 - x^2 / 3).
constexpr float kNearlyLinear = 0x1p-13f;

// d (cap tanh(x / cap)) / dx, of t = tanh(x / cap).
[[nodiscard]] ATTEND_HOST_DEVICE float transform_slope(float t) {
  return multiply_add(-t, t, 1.0f);
}

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)

// The exact form as the host computes it, in float or double.
template <class Real>
struct TransformedScore {
  Real value;
  Real slope;  // d value / d x

  [[nodiscard]] static TransformedScore of(Real x, Real cap) {
    const Real t = std::tanh(x / cap);
    return {cap * t, 1 - t * t};
  }
};

#endif

// Caps that the reciprocal form takes. Of larger ones the error of tanh would show in p; of smaller ones keys that are
// not seen would not vanish.
constexpr float kLargestCapByReciprocal = 256.0f, kSmallestCapByReciprocal = 1e-12f;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Is cap so large that x / cap may underflow? Families that refuse such caps have no constant for it.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_huge_cap() {
  if constexpr (requires { Config::kHasHugeTransform; }) return Config::kHasHugeTransform;
  return false;
}

struct ScoreTransform {
  float cap;
  float scale_in_cap;  // scale / cap

  [[nodiscard]] static __device__ __forceinline__ ScoreTransform make(const OptionArgs& options, float scale) {
    // A quotient beyond the largest float would make NaN of a product that is 0.
    return {options.transform_cap, fmaxf(-kLargestFloat, fminf(kLargestFloat, scale / options.transform_cap))};
  }

  [[nodiscard]] static __device__ __forceinline__ float cap_of(const OptionArgs& options) {
    return options.transform_cap;
  }

  // Exact. score: scale q.k. slope: the derivative.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ float score(float score, float& slope) const {
    const float x = score / cap;
    const float t = tanhf(x);
    const bool is_linear = has_huge_cap<Config>() && fabsf(x) < kNearlyLinear;  // x may have lost the score
    const float result = is_linear ? score : cap * t;
    slope = transform_slope(t);
    return result;
  }

  // Factored: the score is cap times this. The derivative is slope_of_unit_value() of it.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ float unit_value(float product) const {
    const float x = product * scale_in_cap;
    return Config::kElement == ElementType::kF32 ? tanhf(x) : tanh_fast(x);
  }
  [[nodiscard]] static __device__ __forceinline__ float slope_of_unit_value(float value) {
    return transform_slope(value);
  }

  // By reciprocal, forward: -r. The score is cap (1 + 2 times it).
  [[nodiscard]] static __device__ __forceinline__ bool can_be_reciprocal(const OptionArgs& options) {
    return options.transform_cap <= kLargestCapByReciprocal;
  }
  [[nodiscard]] __device__ __forceinline__ float to_exponent() const { return scale_in_cap * (2.0f * kLog2E); }
  [[nodiscard]] static __device__ __forceinline__ float minus_r(float exponent) {
    return reciprocal_fast(-1.0f - exp2_fast(exponent));
  }
};

#endif

// r of an entry that is not seen: p is 2^-(huge), and r - r^2 is still finite.
constexpr float kUnseenReciprocal = 1e18f;

// By reciprocal, backward. Products become r, r becomes p, and ds is made of p (r - r^2), a quarter of the derivative.
// The host fills it; a kernel's operands come from constant memory, without registers.
struct ReciprocalTransform {
  float to_r;        // 2 log2(e) scale / cap
  float exponent;    // -2 log2(e) cap
  float lse_offset;  // log2(e) cap: to be subtracted from log2(e) lse

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
  [[nodiscard]] static ReciprocalTransform of(double scale_log2, double cap) {
    constexpr double kLog2EInDouble = 1.4426950408889634, kMost = kLargestFloat;
    const double to_r = 2 * scale_log2 / cap;
    return {static_cast<float>(to_r < -kMost  ? -kMost
                               : to_r > kMost ? kMost
                                              : to_r),
            static_cast<float>(-2 * kLog2EInDouble * cap), static_cast<float>(kLog2EInDouble * cap)};
  }
#else
  [[nodiscard]] __device__ __forceinline__ float r(float product) const {
    return reciprocal_fast(exp2_fast(product * to_r) + 1.0f);
  }
  // log2_lse: less lse_offset.
  [[nodiscard]] __device__ __forceinline__ float probability(float r, float log2_lse) const {
    return exp2_fast(fmaf(r, exponent, -log2_lse));
  }
  // A quarter of the derivative.
  [[nodiscard]] static __device__ __forceinline__ float quarter_slope(float r) {
    return fmaf(-r, r, r);
  }
#endif
};

}  // namespace attend
