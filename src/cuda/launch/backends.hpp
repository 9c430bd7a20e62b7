// What runs on a GPU, as the dispatcher sees it.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Every family, later rungs of the ladder first and simt, which takes most, last. "auto" compares their estimates.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
