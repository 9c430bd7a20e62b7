// Checks the gradients of tensors that a score function reads.
#pragma once

#include <vector>

#include "check/check.hpp"

namespace attend::cli {

/// Checks each capture gradient of `w`. `reference` is the workload with the results of the float64 reference. `noise`
/// is the same with o rounded as in `w`. A gradient can only be as accurate as its terms, even if they cancel. The
/// tolerance therefore includes the rounding of each score's gradient.
[[nodiscard]] std::vector<TensorError> check_captures(const Workload& w, const Workload& reference,
                                                      const Workload& noise);

}  // namespace attend::cli
