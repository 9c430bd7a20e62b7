// Masks and scores of the caller's own, as docs/custom_scores.md has them, at sizes worth timing: bench --grid masks.
#pragma once

#include <string>
#include <vector>

#include "workload/grid.hpp"
#include "workload/workload.hpp"

namespace attend::cli {

/// The problem of `spec` with each mask and score in turn.
[[nodiscard]] std::vector<GridEntry> masks_grid(const io::FolderSpec& spec);

/// The sizes of the grid where nobody says others: of a GPU, or small ones of float32.
[[nodiscard]] io::FolderSpec masks_spec(DeviceType device);

/// Gives a workload the mask or score of a GridEntry's name. Needs q and k.
/// @throws Error (kInvalidArgument) for a name that is none.
void add_own_function(const std::string& name, Workload& w);

}  // namespace attend::cli
