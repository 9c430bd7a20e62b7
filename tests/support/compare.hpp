// The comparator decides whether a result is as close to the float64 reference as a sound implementation in its dtype.
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
  double ratio = 0;        ///< largest error / budget of any block; fails if > 1 or NaN
  std::string report;      ///< one line; on failure also the worst positions
};

/// The result and the values that it is compared with. All vectors are row-major and have the same shape.
struct Comparand {
  const char* name;
  DType dtype;    ///< dtype of the result
  double factor;  ///< allowed multiple of the standard implementation's error
  const std::vector<double>& result;
  const std::vector<double>& truth;
  const StandardTensor& standard;
  const StandardTensor* for_slope = nullptr;  ///< standard of the slope check, if another (KeptP::kRounded)
  double slope_floor = 0;                     ///< slope deviation that is always allowed (kTwoValuedSoftcap)
};

/// Compares blocks of kRowsPerBlock rows of a head. The last block has up to kFewRows - 1 more. For each block:
///     max |result - truth| <= factor * max |standard - truth| + roundings
/// The same bound holds for the root mean square. Over the entire tensor, <result, truth> / <truth, truth> must be as
/// close to 1 as the standard's. NaN, +inf, -inf and finite entries must be at the same positions as in the truth.
[[nodiscard]] Comparison compare(const Comparand& c);

/// Compares LSE by the same blocks. Its roundings are absolute (kLseAbsolute, kLseMagnitude).
[[nodiscard]] Comparison compare_lse(const std::vector<double>& result, const std::vector<double>& truth,
                                     const StandardTensor& standard);

/// Comparison of one output of a backend.
struct TensorCheck {
  std::string name;
  Comparison comparison;
};

/// Compares outputs that any code computed from the inputs. Also checks that nothing outside the outputs was written.
/// Reports failures to GoogleTest.
std::vector<TensorCheck> compare_outputs(const Inputs& in, const Outputs& out, KeptP kept = KeptP::kFloat,
                                         bool with_gradients = true);

/// Runs a backend on the inputs and compares every output. Also checks that nothing outside the outputs was written,
/// that no input changed, and that a forward without LSE gives the same O. Reports failures to GoogleTest. If the
/// backend has no backward, only its forward runs.
std::vector<TensorCheck> compare_with_reference(const Inputs& in, std::string_view compute);

/// Does the same and returns the comparisons as one line of error/budget pairs.
std::string check_against_reference(const Inputs& in, std::string_view compute);

}  // namespace attend::test
