// Constants and functions of float32 for device code, which cannot include the C library. The host versions are for
// tests of arithmetic that uses them.
#pragma once

#include "portable.cuh"

namespace attend {

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float kLargestFloat = 3.4028234e38f;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Returns 2^x with a relative error of 2^-22. Results below 2^-126 are 0. It takes one instruction, whereas exp2f()
// takes four.
[[nodiscard]] ATTEND_HOST_DEVICE float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return __builtin_exp2f(x);
#endif
}

[[nodiscard]] ATTEND_HOST_DEVICE float log2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return __builtin_log2f(x);
#endif
}

// Returns 1 / x with a relative error of 2^-23. The result is 0 if x is infinite.
[[nodiscard]] ATTEND_HOST_DEVICE float reciprocal_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// Returns the larger operand. If one operand is NaN, returns the other.
[[nodiscard]] ATTEND_HOST_DEVICE float larger(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return __builtin_fmaxf(a, b);
#endif
}

// Returns a * b + c, rounded once.
[[nodiscard]] ATTEND_HOST_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Returns the value that is subtracted before exponentiation. This is the row maximum, or 0 if the row has seen no key.
// The maximum of such a row is -inf. -inf - -inf would be NaN, but 2^(-inf - 0) is 0.
[[nodiscard]] ATTEND_HOST_DEVICE float exponent_base(float row_max) {
  return row_max == -kInfinity ? 0.0f : row_max;
}

// Returns 1 / row_sum, or 0 if the row saw no key. o of such a row then stays 0. NaN stays NaN.
[[nodiscard]] ATTEND_HOST_DEVICE float inverse_or_zero(float row_sum) {
  return row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
}

}  // namespace attend
