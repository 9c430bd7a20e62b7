// Checks the gradients of tensors that a score function reads.
#pragma once

#include <vector>

#include "check/check.hpp"

namespace attend::cli {

/// Checks the gradient of each capture of `w`. A capture is a tensor that the score function reads. `reference` is the
/// workload with the results of the float64 reference. `noise` is the same workload with o rounded to the dtype of `w`.
/// The gradient of a capture is a sum. Its rounding error depends on the magnitude of the summands, even if they
/// cancel. The tolerance therefore includes the rounding error of each score's gradient.
[[nodiscard]] std::vector<TensorError> check_captures(const Workload& w, const Workload& reference,
                                                      const Workload& noise);

}  // namespace attend::cli
