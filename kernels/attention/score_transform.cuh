// The transform of scores, which is softcap: s = cap tanh(x / cap) with x = scale q.k.
//
// Kernels call ScoreTransform, and do not depend on the function that it computes. There are three forms:
// - The exact form computes the score in float32 with the library's tanh. Kernels on CUDA cores use it.
// - The factored form separates unit_value() from the cap. 16-bit types use a fast tanh. The cap is combined with the
//   factor in the softmax's exponent.
// - The reciprocal form uses tanh x = 1 - 2 r with r = 1 / (e^2x + 1). The constant is added to lse, and the factor is
//   part of the exponent. The derivative is 4 (r - r^2). The absolute error is 2^-24 of 2 cap. If cap is at most
//   kLargestCapByReciprocal, this is far below the rounding of p.
#pragma once

#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"
#include "../common/portable.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cmath>
#endif

namespace attend {

// Returns tanh(x) with a relative error below 2^-18 and an absolute error below 2^-22. It uses two instructions of the
// special function unit, whereas the library's tanhf branches. Near 0, 1 - 2 / (e^2x + 1) would lose digits by
// cancellation, so the function uses the first terms of the series there.
[[nodiscard]] ATTEND_HOST_DEVICE float tanh_fast(float x) {
  constexpr float kNearZero = 0.125f;
  const float square = x * x;
  const float series = x * multiply_add(square, multiply_add(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  const float whole = multiply_add(-2.0f, reciprocal_fast(exp2_fast(x * (2.0f * kLog2E)) + 1.0f), 1.0f);
  return square < kNearZero * kNearZero ? series : whole;  // For NaN and infinities, the result is `whole`
}

// If |x| is below this bound, tanh x = x (1 - x^2 / 3) rounds to x.
constexpr float kNearlyLinear = 0x1p-13f;

// Returns the derivative of cap tanh(x / cap) by x, given t = tanh(x / cap).
[[nodiscard]] ATTEND_HOST_DEVICE float transform_slope(float t) {
  return multiply_add(-t, t, 1.0f);
}

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)

// The exact form on the host. Real is float or double.
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

// Bounds of the caps that the reciprocal form supports. With a larger cap, the error of tanh would be visible in p.
// With a smaller cap, masked keys would get a p above 0.
constexpr float kLargestCapByReciprocal = 256.0f, kSmallestCapByReciprocal = 1e-12f;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Returns whether cap may be so large that x / cap underflows. Kernel families that refuse such caps do not define the
// constant.
template <class Config>
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool has_huge_cap() {
  if constexpr (requires { Config::kHasHugeTransform; }) return Config::kHasHugeTransform;
  return false;
}

struct ScoreTransform {
  float cap;
  float scale_in_cap;  // scale / cap

  [[nodiscard]] static __device__ __forceinline__ ScoreTransform make(const OptionArgs& options, float scale) {
    // If the quotient were infinite, its product with 0 would be NaN
    return {options.transform_cap, fmaxf(-kLargestFloat, fminf(kLargestFloat, scale / options.transform_cap))};
  }

  [[nodiscard]] static __device__ __forceinline__ float cap_of(const OptionArgs& options) {
    return options.transform_cap;
  }

  // The exact form. Returns the transform of a score scale q.k. `slope` receives the derivative.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ float score(float score, float& slope) const {
    const float x = score / cap;
    const float t = tanhf(x);
    const bool is_linear = has_huge_cap<Config>() && fabsf(x) < kNearlyLinear;  // x may have underflowed
    const float result = is_linear ? score : cap * t;
    slope = transform_slope(t);
    return result;
  }

  // The factored form. The score is cap times the result. slope_of_unit_value() of the result is the derivative.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ float unit_value(float product) const {
    const float x = product * scale_in_cap;
    return Config::kElement == ElementType::kF32 ? tanhf(x) : tanh_fast(x);
  }
  [[nodiscard]] static __device__ __forceinline__ float slope_of_unit_value(float value) {
    return transform_slope(value);
  }

  // The reciprocal form in the forward pass. minus_r() returns -r. The score is cap (1 + 2 (-r)).
  [[nodiscard]] static __device__ __forceinline__ bool can_be_reciprocal(const OptionArgs& options) {
    return options.transform_cap <= kLargestCapByReciprocal;
  }
  [[nodiscard]] __device__ __forceinline__ float to_exponent() const { return scale_in_cap * (2.0f * kLog2E); }
  [[nodiscard]] static __device__ __forceinline__ float minus_r(float exponent) {
    return reciprocal_fast(-1.0f - exp2_fast(exponent));
  }
};

#endif

// Value of r for a masked entry. With this r, p is 0 and r - r^2 is still finite.
constexpr float kUnseenReciprocal = 1e18f;

// The reciprocal form in the backward pass. The kernel turns products into r, and r into p. Then the kernel computes ds
// from p (r - r^2), where r - r^2 is a quarter of the derivative. The host fills this struct. A kernel reads the
// members from constant memory as operands of instructions, so they occupy no registers.
struct ReciprocalTransform {
  float to_r;        // 2 log2(e) scale / cap
  float exponent;    // -2 log2(e) cap
  float lse_offset;  // log2(e) cap, which the caller subtracts from log2(e) lse

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
  // Returns p. `log2_lse` is log2(e) lse minus lse_offset.
  [[nodiscard]] __device__ __forceinline__ float probability(float r, float log2_lse) const {
    return exp2_fast(fmaf(r, exponent, -log2_lse));
  }
  // Returns a quarter of the derivative of the transform.
  [[nodiscard]] static __device__ __forceinline__ float quarter_slope(float r) {
    return fmaf(-r, r, r);
  }
#endif
};

}  // namespace attend
