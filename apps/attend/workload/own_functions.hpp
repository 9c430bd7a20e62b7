// Custom masks and scores for bench --grid masks. They are those of docs/custom_scores.md, at sizes large enough for
// timing.
#pragma once

#include <string>
#include <vector>

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns one problem for each mask and score. All have the sizes of `spec`.
[[nodiscard]] std::vector<GridEntry> masks_grid(const io::FolderSpec& spec);

/// Returns the default sizes of the grid. They are large for a GPU, and small with float32 for a CPU.
[[nodiscard]] io::FolderSpec masks_spec(DeviceType device);

/// Adds the mask or score that a GridEntry names to a workload. The workload must already have q and k.
/// @throws Error (kInvalidArgument) for an unknown name.
void add_own_function(const std::string& name, Workload& w);

}  // namespace attend::cli
