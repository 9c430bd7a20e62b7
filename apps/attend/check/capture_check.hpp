// The check of the gradients of tensors that a score function reads.
#pragma once

#include <vector>

#include "check/check.hpp"

namespace attend::cli {

/// Checks each capture gradient. reference: the float64 reference's workload, with its results; noise: the same with o
/// as stored in w. A gradient can only be as accurate as its terms. The tolerance therefore includes the rounding of
/// each score's gradient, even if the terms cancel.
[[nodiscard]] std::vector<TensorError> check_captures(const Workload& w, const Workload& reference,
                                                      const Workload& noise);

}  // namespace attend::cli
