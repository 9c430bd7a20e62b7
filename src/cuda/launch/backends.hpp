// What runs on a GPU, as the dispatcher sees it.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Every family as a backend, in the order in which lists and refusals name them, the fastest first: the families for
/// the newest GPUs, then those for older ones, the ladder from its last rung to its first, and the fallback, simt, at
/// the end. "auto" compares estimates and takes the first of equals.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
