// Custom masks and scores as in docs/custom_scores.md, at sizes large enough for timing: bench --grid masks.
#pragma once

#include <string>
#include <vector>

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns the problem of `spec` once for each mask and score.
[[nodiscard]] std::vector<GridEntry> masks_grid(const io::FolderSpec& spec);

/// Returns the default sizes of the grid: large ones for a GPU, small ones of float32 for a CPU.
[[nodiscard]] io::FolderSpec masks_spec(DeviceType device);

/// Adds the mask or score that a GridEntry names to a workload, which must have q and k.
/// @throws Error (kInvalidArgument) for an unknown name.
void add_own_function(const std::string& name, Workload& w);

}  // namespace attend::cli
