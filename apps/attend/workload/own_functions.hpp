// Custom masks and scores for bench --grid masks. The functions are the examples of docs/custom_scores.md. The sizes
// are large enough for timing.
#pragma once

#include <string>
#include <vector>

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// Returns one problem for each mask and score. All have the sizes of `spec`.
[[nodiscard]] std::vector<GridEntry> masks_grid(const io::FolderSpec& spec);

/// Returns the default sizes and dtype of the grid. On a CPU, the sizes are smaller and the dtype is float32.
[[nodiscard]] io::FolderSpec masks_spec(DeviceType device);

/// Adds the mask or score with the name GridEntry::function to a workload. The workload must already have q and k.
/// @throws Error (kInvalidArgument) for an unknown name.
void add_own_function(const std::string& name, Workload& w);

}  // namespace attend::cli
