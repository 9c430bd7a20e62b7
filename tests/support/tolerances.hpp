// Every tolerance of the test suite. Constants here only shrink.
//
// Calibrated on the planted faults of comparator_test.cpp: each of them must be caught with these values.
#pragma once

#include <cmath>

#include "attend/tensor.hpp"

namespace attend::test {

/// Half the distance between neighbouring numbers, relative to their size.
[[nodiscard]] constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF64:
      return 0x1p-53;
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return 0;
  }
  return 0;
}

/// Below this magnitude the spacing of a dtype stops shrinking.
[[nodiscard]] constexpr double min_normal(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
}

[[nodiscard]] constexpr bool is_half(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// --- Against the float64 reference: error <= factor * error of the standard implementation + rounding scale. ---
constexpr double kForwardFactor = 2.0;
constexpr double kGradientFactor = 3.0;

// The gradient of a sink is one sum of the roundings of whole rows, so luck is not averaged over a block: its walk,
// which is more than twice the deviation of a random walk, counts this many times.
constexpr double kSinkWalk = 2.0;

// LSE: absolute error <= kForwardFactor * standard's + kLseAbsolute + kLseMagnitude * max_j (|scale| sum_c |q_c k_c| +
// |bias| + |alibi|).
constexpr double kLseAbsolute = 1e-5;
constexpr double kLseMagnitude = 8 * 0x1p-24;
// Tensor cores add 16 products of 16-bit numbers at a time to a score, and cut the sum off: by 2^-24 of it in the mean.
// kLseMagnitude has room for so many columns; with more it grows as they do.
constexpr float kLseColumns = 128;

// Largest deviation from 1 of the slope of result against reference, in standard errors of the standard implementation.
// Catches a wrong factor that hides below the rounding of single bfloat16 entries.
constexpr double kSlopeSigmas = 8.0;
constexpr std::int64_t kSlopeMinElements = 512;  // fewer elements: the slope is too noisy to judge

// Blocks of at least this many elements must also hold the factor in root mean square.
constexpr std::int64_t kRmsMinElements = 256;
constexpr std::int64_t kRowsPerBlock = 64;
// So few rows at the end of a head are of the block before: what the standard errs by in one or two of them is luck.
constexpr std::int64_t kFewRows = 8;

// Scores under a soft cap below this may be all but two numbers, and so may the p of every row, as softmax in tiles
// rounds them: not relative to the row's sum, as the standard does, but to a score that it found first. p that are
// alike are rounded alike in all rows, and o moves with them, by up to half a unit of p: its slope.
constexpr double kTwoValuedSoftcap = 2.75;  // 2 softcap log2(e) < 8: how far m may lag behind the maximum

// --- Hard rules, absolute. f32 on N(0,1) inputs. ---
constexpr double kF32ForwardAbsolute = 1e-5;
constexpr double kF32GradientRelative = 1e-4;       // of the largest magnitude of the reference
constexpr double kSeedShapeForwardAbsolute = 1e-6;  // at (2, 8, 512, 64)
constexpr double kSeedShapeGradientAbsolute = 1e-5;
constexpr double kHalfRuleFactor = 2.0;  // times the error of the standard implementation,
constexpr double kHalfRuleFloor = 1e-5;  // plus this part of the reference's largest magnitude

// --- The float64 reference itself. ---
constexpr double kSecondFormulation = 1e-12;  // relative to the largest magnitude
constexpr double kCentralDifference = 1e-7;   // likewise: limited by the difference quotient, not by the reference
constexpr double kAdjoint = 1e-12;

// --- Properties: two results of the same backend that differ by rounding only, relative to the largest magnitude. ---
[[nodiscard]] constexpr double property_tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 4 * 0x1p-11;
    case DType::kBF16:
      return 4 * 0x1p-8;
    case DType::kF32:
      return 2e-5;
    default:
      return 1e-12;
  }
}

}  // namespace attend::test
