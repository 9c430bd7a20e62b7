// This file is compiled with -ffp-contract=off. A fused multiply-add would round once instead of twice, which would
// change the bits of results.
#include "io/random_normal.hpp"

#include <array>
#include <cmath>

#include "kernels/attention/philox.cuh"

namespace attend::io {
namespace {

constexpr double kLn2 = 0.693147180559945309417232;
constexpr double kHalfPi = 1.57079632679489661923132;
constexpr double kSqrtHalf = 0.707106781186547524400844;
constexpr double kTwoToMinus32 = 0x1p-32;
// The fourth word of the counter is 1. In dropout, this word is the offset, so the two random sequences differ unless
// the offset is 1.
constexpr std::uint32_t kCounterTag = 1;

/// Returns ln x for 0 < x <= 1. For x = 2^e m with m in [sqrt(1/2), sqrt(2)), it is e ln 2 + 2 artanh((m - 1) / (m +
/// 1)).
double natural_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double square = s * s;  // this value is below 0.0295, so the 12th term of the series is below 2^-60
  double sum = 0;
  for (int n = 25; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return exponent * kLn2 + 2 * s * sum;
}

struct SineCosine {
  double sine;
  double cosine;
};

/// Returns sine and cosine of 2 pi turn, for 0 <= turn < 1. Reduces the angle to [-pi/4, pi/4], uses Taylor's series
/// there, and then applies the symmetries of the quadrant.
SineCosine sine_cosine_of_turn(double turn) {
  const double quarters = 4 * turn;  // this product is exact
  const int quadrant = static_cast<int>(quarters + 0.5);
  const double x = (quarters - quadrant) * kHalfPi;
  const double square = x * x;
  double sine = 0;
  double cosine = 0;
  // Computes 1 - x^2/(2*3) (1 - x^2/(4*5) (...)), beginning with the innermost bracket.
  for (int n = 19; n >= 3; n -= 2) {
    sine = (1 - sine) * square / (n * (n - 1.0));
    cosine = (1 - cosine) * square / ((n - 1.0) * (n - 2.0));
  }
  sine = x * (1 - sine);
  cosine = 1 - cosine;
  switch (quadrant & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

std::array<float, 4> normal_block(std::uint64_t block, std::uint64_t seed, NormalStream stream) {
  const PhiloxWords words = philox_4x32_10({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                             static_cast<std::uint32_t>(stream), kCounterTag}},
                                           static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  std::array<float, 4> values = {};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double u = (words.word[pair] + 1.0) * kTwoToMinus32;
    const double radius = std::sqrt(-2.0 * natural_log(u));
    const SineCosine at = sine_cosine_of_turn(words.word[pair + 1] * kTwoToMinus32);
    values[pair] = static_cast<float>(radius * at.cosine);
    values[pair + 1] = static_cast<float>(radius * at.sine);
  }
  return values;
}

}  // namespace

void fill_normal(std::span<float> out, std::uint64_t seed, NormalStream stream, std::uint64_t first) {
  std::array<float, 4> block = {};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t element = first + i;
    if (i == 0 || element % 4 == 0) block = normal_block(element / 4, seed, stream);
    out[i] = block[element % 4];
  }
}

}  // namespace attend::io
