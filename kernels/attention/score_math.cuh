// Operations of users' score and mask functions, under the names that generated code uses (src/expr/print.hpp).
//
// Every operation has a result for all operands, which src/expr/graph.hpp defines. In kernels the type Float is float.
// On the host, Float may also be double. Results on the host are bit-identical to those of expr::Evaluator, which tests
// the generated code.
//
// If ATTEND_FAST_SCORE_MATH is defined, some functions use one or two instructions of the special function unit. Their
// relative error is 2^-20. Logarithms and tanh have an absolute error of 2^-22. These errors are far below the rounding
// of 16-bit outputs. Quotients that are representable in float are exact.
// If ATTEND_LONG_SEQUENCES is defined, an index or a length may be 2^21 or more.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"
#include "score_point.cuh"

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cmath>
#endif

namespace attend {

namespace score_math {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// Functions of the CUDA math API, which are accurate to a few units in the last place. Approximate instructions such as
// ex2.approx are less accurate. Long functions are called and not inlined, because a user's function may contain
// thousands of calls.
#define ATTEND_SCORE_FUNCTION(name, of_float) \
  ATTEND_HOST_DEVICE float name(float x) {    \
    return of_float(x);                       \
  }
#define ATTEND_SCORE_CALL(name, of_float)                       \
  __host__ __device__ __noinline__ inline float name(float x) { \
    return of_float(x);                                         \
  }
#else
#define ATTEND_SCORE_FUNCTION(name, of_float) \
  template <class Float>                      \
  Float name(Float x) {                       \
    return std::name(x);                      \
  }
#define ATTEND_SCORE_CALL ATTEND_SCORE_FUNCTION
#endif
ATTEND_SCORE_FUNCTION(floor, floorf)
ATTEND_SCORE_FUNCTION(ceil, ceilf)
ATTEND_SCORE_FUNCTION(nearbyint, nearbyintf)
ATTEND_SCORE_FUNCTION(trunc, truncf)
ATTEND_SCORE_FUNCTION(erf, erff)
#if !defined(ATTEND_FAST_SCORE_MATH)
ATTEND_SCORE_FUNCTION(exp, expf)
ATTEND_SCORE_FUNCTION(exp2, exp2f)
ATTEND_SCORE_FUNCTION(log, logf)
ATTEND_SCORE_FUNCTION(log2, log2f)
ATTEND_SCORE_FUNCTION(log1p, log1pf)
ATTEND_SCORE_FUNCTION(sqrt, sqrtf)
ATTEND_SCORE_FUNCTION(tanh, tanhf)
#endif
ATTEND_SCORE_CALL(sin, sinf)
ATTEND_SCORE_CALL(cos, cosf)
ATTEND_SCORE_CALL(tan, tanf)
#undef ATTEND_SCORE_FUNCTION
#undef ATTEND_SCORE_CALL

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
__host__ __device__ __noinline__ inline float pow(float x, float y) {
  return powf(x, y);
}
__host__ __device__ __noinline__ inline float fmod(float x, float y) {
  return fmodf(x, y);
}
ATTEND_HOST_DEVICE float abs(float x) {
  return fabsf(x);
}
#else
using std::fmod;
using std::pow;
template <class Float>
Float abs(Float x) {
  return std::abs(x);
}
#endif

#if defined(ATTEND_FAST_SCORE_MATH)
// Returns e^x. The result is multiplied by a correction for the rounding error of x log2(e).
ATTEND_HOST_DEVICE float exp(float x) {
  constexpr float kRestOfLog2E = 1.925963e-8f, kNearlyInfinite = 200.0f;
  const float exponent = x * kLog2E;
  const float lost = multiply_add(x, kRestOfLog2E, multiply_add(x, kLog2E, -exponent));
  const float power = exp2_fast(exponent);
  return fabsf(x) < kNearlyInfinite ? multiply_add(power, lost * kLn2, power) : power;  // `power` is NaN if x is NaN
}
ATTEND_HOST_DEVICE float exp2(float x) {
  return exp2_fast(x);
}
ATTEND_HOST_DEVICE float log2(float x) {
  return log2_fast(x);
}
ATTEND_HOST_DEVICE float log(float x) {
  return log2_fast(x) * kLn2;
}
ATTEND_HOST_DEVICE float log1p(float x) {
  return log(1.0f + x);
}
ATTEND_HOST_DEVICE float sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}
// Returns r with tanh = 1 - 2 r. `exponent` is 2 log2(e) times the argument of tanh.
ATTEND_HOST_DEVICE float reciprocal_of_tanh(float exponent) {
  return reciprocal_fast(exp2_fast(exponent) + 1.0f);
}
ATTEND_HOST_DEVICE float tanh(float x) {
  return multiply_add(-2.0f, reciprocal_of_tanh(x * (2.0f * kLog2E)), 1.0f);
}
#endif

// Returns a constant, rounded to Float. Used for constants that float32 cannot represent exactly.
template <class Float>
ATTEND_HOST_DEVICE Float rounded(double x) {
  return static_cast<Float>(x);
}
template <class Float>
ATTEND_HOST_DEVICE Float infinity() {
  return static_cast<Float>(kInfinity);
}
template <class Float>
ATTEND_HOST_DEVICE Float not_a_number() {
  return infinity<Float>() - infinity<Float>();
}

// Clamps a subscript to [0, extent). The extent is at least 1.
ATTEND_HOST_DEVICE int within(int subscript, int64 extent) {
  return subscript <= 0 || extent < 1 ? 0 : subscript < extent ? subscript : static_cast<int>(extent - 1);
}

// Integer operations wrap around. Signed overflow is undefined behaviour, so the arithmetic is unsigned.
ATTEND_HOST_DEVICE int wrapped(uint32 x) {
  return static_cast<int>(x);
}
ATTEND_HOST_DEVICE uint32 bits(int x) {
  return static_cast<uint32>(x);
}

ATTEND_HOST_DEVICE int negate(int x) {
  return wrapped(0u - bits(x));
}
ATTEND_HOST_DEVICE int absolute(int x) {
  return x < 0 ? negate(x) : x;
}
ATTEND_HOST_DEVICE int sign(int x) {
  return (x > 0) - (x < 0);
}
ATTEND_HOST_DEVICE int add(int a, int b) {
  return wrapped(bits(a) + bits(b));
}
ATTEND_HOST_DEVICE int subtract(int a, int b) {
  return wrapped(bits(a) - bits(b));
}
ATTEND_HOST_DEVICE int multiply(int a, int b) {
  return wrapped(bits(a) * bits(b));
}
ATTEND_HOST_DEVICE int floor_divide(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return negate(a);  // the quotient of the smallest integer and -1 would overflow
  const int quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
ATTEND_HOST_DEVICE int floor_mod(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
ATTEND_HOST_DEVICE int least(int a, int b) {
  return a < b ? a : b;
}
ATTEND_HOST_DEVICE int greatest(int a, int b) {
  return a < b ? b : a;
}
ATTEND_HOST_DEVICE int shift_left(int a, int b) {
  return wrapped(bits(a) << (bits(b) & 31));
}
ATTEND_HOST_DEVICE int shift_right(int a, int b) {
  return a >> (bits(b) & 31);
}

template <class Float>
ATTEND_HOST_DEVICE Float negate(Float x) {
  return -x;
}
template <class Float>
ATTEND_HOST_DEVICE Float absolute(Float x) {
  return abs(x);
}
template <class Float>
ATTEND_HOST_DEVICE Float sign(Float x) {
  return x > 0 ? Float(1) : x < 0 ? Float(-1) : x == 0 ? Float(0) : x;
}
template <class Float>
ATTEND_HOST_DEVICE Float add(Float a, Float b) {
  return a + b;
}
template <class Float>
ATTEND_HOST_DEVICE Float subtract(Float a, Float b) {
  return a - b;
}
template <class Float>
ATTEND_HOST_DEVICE Float multiply(Float a, Float b) {
  return a * b;
}
#if defined(ATTEND_FAST_SCORE_MATH)
// Returns a / b, computed from an approximate reciprocal of b. Quotients that are representable in float are exact,
// because a step function such as floor may be applied to the result. If infinities or zeros make the correction NaN,
// the result is the uncorrected quotient.
ATTEND_HOST_DEVICE float corrected_quotient(float a, float b, float reciprocal) {
  const float quotient = a * reciprocal;
  const float corrected = multiply_add(multiply_add(-quotient, b, a), reciprocal, quotient);
  return corrected == corrected ? corrected : quotient;
}
#endif
template <class Float>
ATTEND_HOST_DEVICE Float divide(Float a, Float b) {
#if defined(ATTEND_FAST_SCORE_MATH)
  return corrected_quotient(a, b, reciprocal_fast(b));
#else
  return a / b;
#endif
}
// tanh_of_quotient() returns tanh(a / b). soft_cap() returns cap * tanh(a / b). `to_exponent` is 2 log2(e) / b.
template <class Float>
ATTEND_HOST_DEVICE Float tanh_of_quotient(Float a, Float b, [[maybe_unused]] Float to_exponent) {
#if defined(ATTEND_FAST_SCORE_MATH)
  return multiply_add(-2.0f, reciprocal_of_tanh(a * to_exponent), 1.0f);
#else
  return tanh(a / b);
#endif
}
template <class Float>
ATTEND_HOST_DEVICE Float soft_cap(Float cap, Float a, Float b, [[maybe_unused]] Float to_exponent) {
#if defined(ATTEND_FAST_SCORE_MATH)
  return multiply_add(-2.0f * cap, reciprocal_of_tanh(a * to_exponent), cap);
#else
  return cap * tanh(a / b);
#endif
}
template <class Float>
ATTEND_HOST_DEVICE Float rsqrt(Float x) {
  return divide(Float(1), sqrt(x));
}
template <class Float>
ATTEND_HOST_DEVICE Float sigmoid(Float x) {
  return divide(Float(1), 1 + exp(-x));
}
// Returns a / b. `reciprocal` is 1 / b, rounded.
template <class Float>
ATTEND_HOST_DEVICE Float divide_by(Float a, Float b, [[maybe_unused]] Float reciprocal) {
#if defined(ATTEND_FAST_SCORE_MATH)
  return corrected_quotient(a, b, reciprocal);
#else
  return a / b;
#endif
}
template <class Float>
ATTEND_HOST_DEVICE Float floor_divide(Float a, Float b) {
  return floor(a / b);
}
template <class Float>
ATTEND_HOST_DEVICE Float floor_mod(Float a, Float b) {
  const Float rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
// The minimum and maximum are NaN if either operand is NaN.
template <class Float>
ATTEND_HOST_DEVICE Float least(Float a, Float b) {
  return a != a || b != b ? a + b : b < a ? b : a;
}
template <class Float>
ATTEND_HOST_DEVICE Float greatest(Float a, Float b) {
  return a != a || b != b ? a + b : a < b ? b : a;
}
// Rounds towards zero, and saturates at the range of int. NaN becomes 0.
template <class Float>
ATTEND_HOST_DEVICE int to_int(Float x) {
  if (!(x > Float(-2147483648.0))) return x != x ? 0 : -2147483647 - 1;
  return x < Float(2147483648.0) ? static_cast<int>(x) : 2147483647;
}
template <class Float>
ATTEND_HOST_DEVICE Float to_float(int x) {
  return static_cast<Float>(x);
}
// Converts an integer of at most 2^24. `sum` is the same number, computed with floats. The function returns `sum`
// unless ATTEND_LONG_SEQUENCES is defined, because a conversion for each score would cost more than float additions.
template <class Float>
ATTEND_HOST_DEVICE Float small_to_float([[maybe_unused]] int x, [[maybe_unused]] Float sum) {
#if defined(ATTEND_LONG_SEQUENCES)
  return static_cast<Float>(x);
#else
  return sum;
#endif
}
// Converts an integer below 2^22, which is a summand of the `sum` above. The integer becomes the last bits of 1.5 *
// 2^23, which takes one integer addition and one float addition.
template <class Float>
ATTEND_HOST_DEVICE Float small_part(int x) {
#if defined(__CUDA_ARCH__) && !defined(ATTEND_LONG_SEQUENCES)
  return __int_as_float(0x4b400000 + x) - 12582912.0f;
#else
  return static_cast<Float>(x);
#endif
}
ATTEND_HOST_DEVICE int to_int(bool x) {
  return x ? 1 : 0;
}

}  // namespace score_math
}  // namespace attend
