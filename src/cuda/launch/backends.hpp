// What runs on a GPU, as the dispatcher sees it.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Every rung of the ladder, the best first, and simt: the order in which "auto" looks for one that supports a problem,
/// among those that it tries.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
