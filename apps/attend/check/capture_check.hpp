// The check of gradients of tensors that a score function reads.
#pragma once

#include <vector>

#include "check/check.hpp"

namespace attend::cli {

/// Of each gradient. reference: the float64 reference's workload, with its results; noise: the same with o as w has it.
/// Gradients are as exact as their terms: what rounding does to each score's gradient is allowed for, however little is
/// left of the sum.
[[nodiscard]] std::vector<TensorError> check_captures(const Workload& w, const Workload& reference,
                                                      const Workload& noise);

}  // namespace attend::cli
