// What runs on a GPU, as the dispatcher sees it.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Every rung of the ladder and simt, the best first: the order in which "auto" looks for one that supports a problem.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
