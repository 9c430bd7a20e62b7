// Makes random problems for timing and checking.
#pragma once

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns the problem of `entry` with its mask or score. Its inputs are N(0,1) numbers that are the same at every
/// call. The outputs of the passes of `mode` are allocated and filled with poison. If a tensor has more than four
/// million elements, its numbers repeat.
[[nodiscard]] Workload random_workload(const GridEntry& entry, const AttentionOptions& options, Mode mode);

}  // namespace attend::cli
