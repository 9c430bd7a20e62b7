// Problems of random numbers, for timing and for checking.
#pragma once

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The problem of `entry` and its mask or score, with N(0,1) inputs, the same at every call, and poisoned outputs for
/// the passes of `mode`. A tensor of more than four million elements repeats them.
[[nodiscard]] Workload random_workload(const GridEntry& entry, const AttentionOptions& options, Mode mode);

}  // namespace attend::cli
