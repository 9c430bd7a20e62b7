// The operations of users' score and mask functions, as printed code names them (src/expr/print.hpp).
//
// Every one has a result for all operands: src/expr/graph.hpp says which. Float is float in kernels. On the host it may
// be double, and results are then those of expr::Evaluator, bit for bit: a test of the printed code.
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
// Of the CUDA math API: exact to a few units in the last place. ex2.approx and others of its kind are not. Long ones
// are called: a function may have thousands.
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
ATTEND_SCORE_FUNCTION(exp, expf)
ATTEND_SCORE_FUNCTION(exp2, exp2f)
ATTEND_SCORE_FUNCTION(log, logf)
ATTEND_SCORE_FUNCTION(log2, log2f)
ATTEND_SCORE_FUNCTION(log1p, log1pf)
ATTEND_SCORE_FUNCTION(sqrt, sqrtf)
ATTEND_SCORE_FUNCTION(tanh, tanhf)
ATTEND_SCORE_FUNCTION(erf, erff)
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

// A constant that is no number of float32's.
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

// A subscript within an extent, which is at least 1.
ATTEND_HOST_DEVICE int within(int subscript, int64 extent) {
  return subscript <= 0 || extent < 1 ? 0 : subscript < extent ? subscript : static_cast<int>(extent - 1);
}

// Integers wrap: unsigned arithmetic does, signed arithmetic must not.
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
  if (b == -1) return negate(a);  // the least integer's quotient is none
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
ATTEND_HOST_DEVICE Float rsqrt(Float x) {
  return 1 / sqrt(x);
}
template <class Float>
ATTEND_HOST_DEVICE Float sigmoid(Float x) {
  return 1 / (1 + exp(-x));
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
template <class Float>
ATTEND_HOST_DEVICE Float divide(Float a, Float b) {
  return a / b;
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
// NaN if either is.
template <class Float>
ATTEND_HOST_DEVICE Float least(Float a, Float b) {
  return a != a || b != b ? a + b : b < a ? b : a;
}
template <class Float>
ATTEND_HOST_DEVICE Float greatest(Float a, Float b) {
  return a != a || b != b ? a + b : a < b ? b : a;
}
// Towards zero, within the range of integers; NaN becomes 0.
template <class Float>
ATTEND_HOST_DEVICE int to_int(Float x) {
  if (!(x > Float(-2147483648.0))) return x != x ? 0 : -2147483647 - 1;
  return x < Float(2147483648.0) ? static_cast<int>(x) : 2147483647;
}
ATTEND_HOST_DEVICE int to_int(bool x) {
  return x ? 1 : 0;
}

}  // namespace score_math
}  // namespace attend
