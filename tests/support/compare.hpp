// The comparator: is a result as close to the float64 truth as a sound implementation in its dtype would be?
#pragma once

#include <string>
#include <vector>

#include "support/standard.hpp"

namespace attend::test {

struct Comparison {
  bool ok = true;
  double error = 0;        ///< largest absolute error
  double standard = 0;     ///< largest absolute error of the standard implementation
  double budget = 0;       ///< the budget of the block where error / budget is largest
  double block_error = 0;  ///< the error of that block
  double ratio = 0;        ///< the largest error / budget of any block; > 1 or NaN fails
  std::string report;      ///< one line, and the worst positions if not ok
};

/// What is compared with what. All vectors are row-major and of one shape.
struct Comparand {
  const char* name;
  DType dtype;    ///< of the result
  double factor;  ///< allowed multiple of the standard implementation's error
  const std::vector<double>& result;
  const std::vector<double>& truth;
  const StandardTensor& standard;
  const StandardTensor* for_slope = nullptr;  ///< what the slope is held to, where that is another (KeptP::kRounded)
  double slope_floor = 0;                     ///< what the slope may be off by in any case (kTwoValuedSoftcap)
};

/// Per block of kRowsPerBlock rows of a head, the last one with up to kFewRows - 1 more:
///   max |result - truth| <= factor * max |standard - truth| + roundings      and likewise in root mean square;
/// over the whole tensor: <result, truth> / <truth, truth> is as close to 1 as the standard's;
/// and NaN, +inf, -inf and finite entries stand exactly where they stand in the truth.
[[nodiscard]] Comparison compare(const Comparand& c);

/// The same for LSE, whose roundings are absolute (kLseAbsolute, kLseMagnitude), by the same blocks.
[[nodiscard]] Comparison compare_lse(const std::vector<double>& result, const std::vector<double>& truth,
                                     const StandardTensor& standard);

/// One output of a backend, compared.
struct TensorCheck {
  std::string name;
  Comparison comparison;
};

/// Compares outputs that were made from the inputs, whoever made them, and checks that nothing outside of them was
/// written. Reports failures to GoogleTest.
std::vector<TensorCheck> compare_outputs(const Inputs& in, const Outputs& out, KeptP kept = KeptP::kFloat,
                                         bool with_gradients = true);

/// Runs a backend on the inputs and compares every output. Also checks that nothing outside the outputs was written,
/// that no input changed, and that a forward without LSE gives the same O. Reports failures to GoogleTest.
/// A backend without a backward is asked for its forward only.
std::vector<TensorCheck> compare_with_reference(const Inputs& in, std::string_view compute);

/// The same, as one line of error/budget pairs.
std::string check_against_reference(const Inputs& in, std::string_view compute);

}  // namespace attend::test
