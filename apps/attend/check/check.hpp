// Is a result right? The comparison with the float64 reference behind --check.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "io/host_tensor.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// How far one tensor is from the reference. Entries that are NaN or infinite have to be so in both, else the errors
/// are infinite.
struct TensorError {
  std::string name;
  double max_abs = 0;    ///< largest |result - reference|
  double mean_abs = 0;   ///< mean of it
  double mse = 0;        ///< mean of its square
  double max_rel = 0;    ///< max_abs / largest finite |reference|
  double tolerance = 0;  ///< what max_abs may be; of 16 bits the largest tolerance of any 64 rows
  double mse_tolerance = std::numeric_limits<double>::infinity();  ///< what mse may be; infinity: it is not judged
  std::string fault;    ///< of 16 bits: the rows that are furthest off, or the mse; empty: neither is at fault
  bool passed = false;  ///< all are kept; never with NaN
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
///   f32       O and logsumexp 1e-5 max(1, M), gradients 1e-4 M; at least 2 E; gradients N more
///   f16, bf16 2 E + (1e-5 + u) M; gradients N more; M, E and N of every 64 rows of a head, which are held to it alone
/// E is the error of the plain algorithm in the same type; N is what rounding may do to a gradient of which little or
/// nothing is left after a cancellation (both: standard.hpp); u is half a unit of the result's type, 2^-11 or 2^-8,
/// whose M is at least the type's smallest normal number. E for f32, and N, are computed only where the rest is not
/// enough. A factor that is a little wrong hides below the largest error of 16 bits, but not in all entries together:
/// results of 16 bits with 64 rows and 512 entries or more also have to keep
///   sqrt(mse) <= 2 sqrt(E's mse) + u / 2 sqrt(mean of reference^2)        gradients sqrt(mean of N^2) more, where N
///                                                                         counts no rounding of O
[[nodiscard]] CheckReport check(const Workload& w, Mode mode);

}  // namespace attend::cli
