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
/// The tolerance of max_abs depends on a type: that of Q, or that of the result if it has fewer bits. M is the largest
/// finite |reference|.
///
///   f64       1e-12 max(1, M)
///   f32       O and logsumexp 1e-5 max(1, M), gradients 1e-4 M; at least 2 E; plus N for gradients
///   f16, bf16 2 E + (1e-5 + u) M; plus N for gradients; M, E and N are those of each 64 rows of a head
/// E is the error of the standard algorithm in the same type. N is the possible effect of rounding on a gradient whose
/// terms cancel. standard.hpp describes both. u is half a unit in the last place of the result's type, 2^-11 or 2^-8.
/// In the term with u, M is at least the smallest normal number of the type. N, and E for f32, are computed only if the
/// other terms are not enough.
///
/// The maximum error of 16-bit results can hide a slightly wrong factor, but the mean over all entries cannot. If a
/// 16-bit result has at least 64 rows and 512 entries, it must therefore also satisfy
///
///   sqrt(mse) <= 2 sqrt(E's mse) + u / 2 sqrt(mean of reference^2)
/// For gradients, the right side also contains sqrt(mean of N^2), where N excludes the rounding of O.
[[nodiscard]] CheckReport check(const Workload& w, Mode mode);

}  // namespace attend::cli
