// Makes random problems for timing and checking.
#pragma once

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns the problem of `entry` with its mask or score. The inputs are normally distributed numbers, which are the
/// same at every call. In a tensor with more than four million elements, the numbers repeat. The outputs of the passes
/// of `mode` are allocated and filled with poison.
[[nodiscard]] Workload random_workload(const GridEntry& entry, const AttentionOptions& options, Mode mode);

}  // namespace attend::cli
