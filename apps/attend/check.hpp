// Is a result right? The comparison with the float64 reference behind --check.
#pragma once

#include <string>
#include <vector>

#include "io/host_tensor.hpp"
#include "workload.hpp"

namespace attend::cli {

/// How far one tensor is from the reference. Entries that are NaN or infinite have to be so in both, else the errors
/// are infinite.
struct TensorError {
  std::string name;
  double max_abs = 0;    ///< largest |result - reference|
  double mean_abs = 0;   ///< mean of it
  double mse = 0;        ///< mean of its square
  double max_rel = 0;    ///< max_abs / largest finite |reference|
  double tolerance = 0;  ///< what max_abs may be
  bool passed = false;   ///< max_abs <= tolerance; never with NaN
};

/// The errors of `result` against `reference`, which has the same shape. Tolerance and passed are left alone.
[[nodiscard]] TensorError compare(std::string name, const Tensor& result, const Tensor& reference);

struct CheckReport {
  std::vector<TensorError> forward;   ///< O, logsumexp; empty if not checked
  std::vector<TensorError> backward;  ///< dQ, dK, dV, and dbias where there is one; likewise
};

/// Compares the results of `w` with those of the float64 reference, computed here from the inputs alone.
///
/// The tolerance of max_abs, with M = largest finite |reference|, by the type of Q, or of the result where that has
/// fewer bits:
///   f64       1e-12 max(1, M)
///   f32       O and logsumexp 1e-5 max(1, M), gradients 1e-4 M; at least 2 E
///   f16, bf16 2 E + 1e-5 M                where E is the error of the plain algorithm in the same type (standard.hpp)
/// For f32, E is computed only where the rest is not enough.
[[nodiscard]] CheckReport check(const Workload& w, Mode mode);

}  // namespace attend::cli
