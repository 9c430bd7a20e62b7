// Random problems for timing and checking.
#pragma once

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns the problem of `entry` with its mask or score, N(0,1) inputs that are the same at every call, and poisoned
/// outputs for the passes of `mode`. Tensors of more than four million elements repeat them.
[[nodiscard]] Workload random_workload(const GridEntry& entry, const AttentionOptions& options, Mode mode);

}  // namespace attend::cli
