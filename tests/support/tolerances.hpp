// Every tolerance of the test suite. A constant here may be lowered but never raised.
//
// The constants are calibrated on the planted faults of comparator_test.cpp: each fault must be caught with these
// values.
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

/// Magnitude below which the spacing of a dtype stops shrinking.
[[nodiscard]] constexpr double min_normal(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
}

[[nodiscard]] constexpr bool is_half(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// --- Against the float64 reference: error <= factor * error of the standard implementation + rounding scale. ---
constexpr double kForwardFactor = 2.0;
constexpr double kGradientFactor = 3.0;

// Factor on the random walk of a sink's gradient. That gradient is one sum of the roundings of full rows, so chance is
// not averaged over a block. The walk alone is already more than twice the standard deviation of a random walk.
constexpr double kSinkWalk = 2.0;

// LSE: absolute error <= kForwardFactor * standard's + kLseAbsolute + kLseMagnitude * max_j (|scale| sum_c |q_c k_c| +
// |bias| + |alibi|).
constexpr double kLseAbsolute = 1e-5;
constexpr double kLseMagnitude = 8 * 0x1p-24;
// Tensor cores add 16 products of 16-bit numbers at a time to a score and truncate the sum, which loses 2^-24 of it on
// average. kLseMagnitude covers this many columns. With more columns the allowance grows in proportion.
constexpr float kLseColumns = 128;

// Largest deviation from 1 of the slope of result against reference, in standard errors of the standard implementation.
// It catches a wrong factor that is smaller than the rounding of single bfloat16 entries.
constexpr double kSlopeSigmas = 8.0;
constexpr std::int64_t kSlopeMinElements = 512;  // with fewer elements the slope is too noisy to judge

// Blocks of at least this many elements must also meet the factor in root mean square.
constexpr std::int64_t kRmsMinElements = 256;
constexpr std::int64_t kRowsPerBlock = 64;
// Fewer rows than this at the end of a head join the previous block, because the standard's error in one or two rows is
// a matter of chance.
constexpr std::int64_t kFewRows = 8;

// Scores under a soft cap of at most this value may take almost only two values, and so may every row of p. A tiled
// softmax rounds p relative to a score that it found early, whereas the standard rounds relative to the row's sum.
// Equal p are rounded equally in all rows, so o moves with them by up to half a unit of p, which changes its slope.
constexpr double kTwoValuedSoftcap = 2.75;  // 2 softcap log2(e) < 8: m may be this far below the true row maximum

// --- Fixed absolute limits. f32 on N(0,1) inputs. ---
constexpr double kF32ForwardAbsolute = 1e-5;
constexpr double kF32GradientRelative = 1e-4;       // relative to the largest magnitude of the reference
constexpr double kSeedShapeForwardAbsolute = 1e-6;  // at (2, 8, 512, 64)
constexpr double kSeedShapeGradientAbsolute = 1e-5;
constexpr double kHalfRuleFactor = 2.0;  // times the error of the standard implementation,
constexpr double kHalfRuleFloor = 1e-5;  // plus this fraction of the reference's largest magnitude

// --- The float64 reference itself. ---
constexpr double kSecondFormulation = 1e-12;  // relative to the largest magnitude
constexpr double kCentralDifference = 1e-7;   // relative too: the difference quotient limits it, not the reference
constexpr double kAdjoint = 1e-12;

// --- Properties: two results of the same backend that differ only by rounding, relative to the largest magnitude. ---
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
