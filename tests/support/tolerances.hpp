// Every tolerance of the test suite. A constant here may be lowered but never raised.
//
// The constants are calibrated with the planted faults of comparator_test.cpp: the comparison must detect each fault
// with these values.
#pragma once

#include <cmath>

#include "attend/tensor.hpp"

namespace attend::test {

/// Returns half the distance between neighbouring numbers, relative to their magnitude.
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

/// Returns the smallest normal number. Below it, the spacing between numbers is constant.
[[nodiscard]] constexpr double min_normal(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
}

[[nodiscard]] constexpr bool is_half(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// --- Against the float64 reference: the error must not exceed the factor times the error of the standard
// implementation, plus an allowance for rounding.
// ---
constexpr double kForwardFactor = 2.0;
constexpr double kGradientFactor = 3.0;

// Factor on the estimated rounding error (`walk`) of a sink's gradient. This gradient is a single sum over full rows,
// so random deviations do not average out as they do in a block of many elements. The estimate alone is already more
// than twice the standard deviation of a random walk.
constexpr double kSinkWalk = 2.0;

// Limit for LSE. The magnitude of a score is |scale| times the sum of |q_c k_c| over all columns c, plus |bias| and
// |alibi|. The absolute error must not exceed kForwardFactor times the error of the standard, plus kLseAbsolute, plus
// kLseMagnitude times the largest magnitude among the row's scores.
constexpr double kLseAbsolute = 1e-5;
constexpr double kLseMagnitude = 8 * 0x1p-24;
// A tensor core adds 16 products of 16-bit numbers to a score at a time and truncates the sum. The relative error is
// 2^-24 on average. kLseMagnitude covers this error for up to this many columns. For more columns the allowance grows
// in proportion.
constexpr float kLseColumns = 128;

// Limit for the deviation of the slope (result against reference) from 1, in standard errors of the standard
// implementation's slope. The limit detects a wrong factor that is smaller than the rounding error of single bfloat16
// entries.
constexpr double kSlopeSigmas = 8.0;
constexpr std::int64_t kSlopeMinElements = 512;  // with fewer elements the slope is too noisy to judge

// In blocks of at least this many elements, the root mean square error must also stay within the budget.
constexpr std::int64_t kRmsMinElements = 256;
constexpr std::int64_t kRowsPerBlock = 64;
// If fewer rows than this are left at the end of a head, they join the previous block. The standard's error in one or
// two rows depends too much on chance.
constexpr std::int64_t kFewRows = 8;

// With a soft cap of at most this value, almost all scores may have one of two values, and so may each row of p. A
// tiled softmax rounds p relative to an early row maximum. The standard rounds p relative to the sum of the row. Equal
// entries of p have equal rounding errors in all rows. Therefore the errors of p do not average out, and they change
// the slope of o against the reference by up to half a unit in the last place of p. At this soft cap, two scores differ
// by at most 2 softcap log2(e) in base-2 units. This difference is below 8, which is the largest amount by which a
// kernel's row maximum may lag behind the true one.
constexpr double kTwoValuedSoftcap = 2.75;

// --- Fixed limits for f32 on N(0,1) inputs. The limits are absolute errors, unless the name or a comment states
// otherwise. ---
constexpr double kF32ForwardAbsolute = 1e-5;
constexpr double kF32GradientRelative = 1e-4;       // relative to the largest magnitude of the reference
constexpr double kSeedShapeForwardAbsolute = 1e-6;  // at (2, 8, 512, 64)
constexpr double kSeedShapeGradientAbsolute = 1e-5;
constexpr double kHalfRuleFactor = 2.0;  // factor on the standard implementation's error
// Additional allowed error in half precision, relative to the largest magnitude of the reference.
constexpr double kHalfRuleFloor = 1e-5;

// --- The float64 reference itself. ---
constexpr double kSecondFormulation = 1e-12;  // limit relative to the largest magnitude
// Limit relative to the largest magnitude. The error of the difference quotient determines this limit.
constexpr double kCentralDifference = 1e-7;
constexpr double kAdjoint = 1e-12;

// --- Properties: tolerance for two results of one backend that differ only by rounding, relative to the largest
// magnitude. ---
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
