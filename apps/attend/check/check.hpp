// The comparison of results with the float64 reference behind --check.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "io/host_tensor.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The error of one tensor relative to the reference. The errors are infinite unless NaN and infinite entries agree.
struct TensorError {
  std::string name;
  double max_abs = 0;    ///< largest |result - reference|
  double mean_abs = 0;   ///< mean of |result - reference|
  double mse = 0;        ///< mean of its square
  double max_rel = 0;    ///< max_abs / largest finite |reference|
  double tolerance = 0;  ///< allowed max_abs; for 16 bits the largest tolerance of any 64 rows
  double mse_tolerance = std::numeric_limits<double>::infinity();  ///< allowed mse; infinity: mse is not checked
  std::string fault;    ///< for 16 bits: the rows with the largest error, or the mse; empty if both are within the
                        ///< tolerance
  bool passed = false;  ///< all tolerances are kept; false with NaN
};

/// Returns the errors of `result` relative to `reference`, which has the same shape. Does not set tolerance and passed.
[[nodiscard]] TensorError compare(std::string name, const Tensor& result, const Tensor& reference);

struct CheckReport {
  std::vector<TensorError> forward;   ///< O, logsumexp; empty if not checked
  std::vector<TensorError> backward;  ///< dQ, dK, dV, and dbias if there is a bias; empty if not checked
};

/// Compares the results of `w` with the float64 reference, which is computed here from the inputs alone.
///
/// The tolerance of max_abs depends on the type of Q, or of the result if it has fewer bits. M = largest finite
/// |reference|:
///   f64       1e-12 max(1, M)
///   f32       O and logsumexp 1e-5 max(1, M), gradients 1e-4 M; at least 2 E; plus N for gradients
///   f16, bf16 2 E + (1e-5 + u) M; plus N for gradients; M, E and N are those of each 64 rows of a head
/// E is the error of the standard algorithm in the same type. N is the possible effect of rounding on a gradient whose
/// terms cancel (see standard.hpp for both). u is half a unit of the result's type, 2^-11 or 2^-8, whose M is at least
/// the type's smallest normal number. E for f32, and N, are computed only if the other terms are not enough.
///
/// The maximum error of 16 bits can hide a slightly wrong factor, but the mean over all entries cannot. Therefore
/// results of 16 bits with at least 64 rows and 512 entries must also satisfy
///   sqrt(mse) <= 2 sqrt(E's mse) + u / 2 sqrt(mean of reference^2)
/// plus sqrt(mean of N^2) for gradients, in which N excludes the rounding of O.
[[nodiscard]] CheckReport check(const Workload& w, Mode mode);

}  // namespace attend::cli
