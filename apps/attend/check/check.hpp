// Compares results with the float64 reference, for the flag --check.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "io/host_tensor.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Errors of one tensor relative to the reference. The errors are infinite if the two tensors differ in the positions
/// of NaN or infinities.
struct TensorError {
  std::string name;
  double max_abs = 0;   ///< largest |result - reference|
  double mean_abs = 0;  ///< mean of |result - reference|
  double mse = 0;       ///< mean of (result - reference)^2
  double max_rel = 0;   ///< max_abs divided by the largest finite |reference|
  /// Largest allowed max_abs. A 16-bit result has a separate tolerance for each group of 64 rows, and this is the
  /// largest of them.
  double tolerance = 0;
  /// Largest allowed mse. If infinite, mse is not checked.
  double mse_tolerance = std::numeric_limits<double>::infinity();
  /// Message for a 16-bit result that exceeds a tolerance. It names the rows with the largest error, or the mse. It is
  /// empty for other results.
  std::string fault;
  bool passed = false;  ///< true if all errors are within their tolerances; false if there is a NaN
};

/// Returns the errors of `result` relative to `reference`, which must have the same shape. The fields tolerance and
/// passed are not set.
[[nodiscard]] TensorError compare(std::string name, const Tensor& result, const Tensor& reference);

struct CheckReport {
  std::vector<TensorError> forward;  ///< errors of O and logsumexp; empty if not checked
  /// Errors of dQ, dK and dV, and of dbias if there is a bias. Empty if not checked.
  std::vector<TensorError> backward;
};

/// Computes the float64 reference from the inputs of `w` and compares the results of `w` with it.
///
/// The tolerance of max_abs uses these numbers:
///
/// - M is the largest finite |reference|.
/// - E is the error of the standard algorithm in the same type (standard.hpp).
/// - N is the noise of O or of a gradient in a group of 64 rows. Noise is the largest error that rounding can cause
///   (standard.hpp).
/// - u is half a unit in the last place of the result's type: 2^-11 for f16 and 2^-8 for bf16.
///
/// The formula depends on the type of Q, or on the type of the result if it has fewer bits.
///
/// - For f64, the tolerance is 1e-12 max(1, M).
/// - For f32, the tolerance of O and logsumexp is 1e-5 max(1, M), and that of gradients is 1e-4 M. If the error is
///   larger, the tolerance is at least 2 E. If the error is still larger, N is added for O and for gradients.
/// - For f16 and bf16, each group of 64 rows of a head has separate numbers M, E and N. The tolerance is
///   2 E + (1e-5 + u) M. If the error of a gradient is larger, N is added. In the term u M, M is at least the
///   smallest normal number of the type.
///
/// The mean squared error (mse) of 16-bit results is checked too. If all elements have a slightly wrong factor, the
/// maximum error can be within its tolerance, but the mean error is not. If a 16-bit result has at least 64 rows and
/// 512 elements, it must satisfy
///
///   sqrt(mse) <= 2 sqrt(mse of the standard algorithm) + u / 2 sqrt(mean of reference^2)
///
/// For gradients, sqrt(mean of N^2) is added to the right side. This N does not include the rounding of O.
[[nodiscard]] CheckReport check(const Workload& w, Mode mode);

}  // namespace attend::cli
