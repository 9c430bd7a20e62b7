// Decides whether a result is as close to the float64 reference as a sound implementation in the result's dtype can be.
#pragma once

#include <string>
#include <vector>

#include "support/standard.hpp"

namespace attend::test {

struct Comparison {
  bool ok = true;
  double error = 0;        ///< largest absolute error
  double standard = 0;     ///< largest absolute error of the standard implementation
  double budget = 0;       ///< budget of the block in which error / budget is largest
  double block_error = 0;  ///< error of that block
  double ratio = 0;        ///< largest error / budget of any block; the comparison fails if this is > 1 or NaN
  std::string report;      ///< one line; after a failure, the worst positions follow
};

/// The result and the values that it is compared with. All vectors are row-major and have the same shape.
struct Comparand {
  const char* name;
  DType dtype;    ///< dtype of the result
  double factor;  ///< allowed multiple of the standard implementation's error
  const std::vector<double>& result;
  const std::vector<double>& truth;
  const StandardTensor& standard;
  const StandardTensor* for_slope = nullptr;  ///< standard used by the slope check; null selects `standard`
  double slope_floor = 0;                     ///< slope deviation that is always allowed; see kTwoValuedSoftcap
};

/// Compares each head in blocks of kRowsPerBlock rows. The last block has up to kFewRows - 1 rows more. In each block,
/// the largest error of the result must not exceed `factor` times the largest error of the standard implementation,
/// plus an allowance for rounding. The root mean square of the errors in a block must satisfy the same bound. Over the
/// entire tensor, the slope <result, truth> / <truth, truth> must be about as close to 1 as the slope of the standard.
/// NaN, +inf, -inf and finite entries must be at the same positions in the result and in the truth.
[[nodiscard]] Comparison compare(const Comparand& c);

/// Compares LSE in the same blocks of rows. The allowance for rounding is absolute (kLseAbsolute, kLseMagnitude).
[[nodiscard]] Comparison compare_lse(const std::vector<double>& result, const std::vector<double>& truth,
                                     const StandardTensor& standard);

/// Comparison of one output tensor of a backend.
struct TensorCheck {
  std::string name;
  Comparison comparison;
};

/// Compares outputs that were computed from `in` by any implementation. Also checks that nothing outside the outputs
/// was written. Reports failures to GoogleTest.
std::vector<TensorCheck> compare_outputs(const Inputs& in, const Outputs& out, KeptP kept = KeptP::kFloat,
                                         bool with_gradients = true);

/// Runs a backend on the inputs and compares every output. Also checks that nothing outside the outputs was written,
/// that no input changed, and that a forward without LSE gives the same O. Reports failures to GoogleTest. If the
/// backend has no backward, only its forward runs.
std::vector<TensorCheck> compare_with_reference(const Inputs& in, std::string_view compute);

/// Calls compare_with_reference and returns the comparisons as one line of error/budget pairs.
std::string check_against_reference(const Inputs& in, std::string_view compute);

}  // namespace attend::test
