// The GPU backends, as the dispatcher sees them.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Returns one backend per family, in the order of lists and refusals. The fastest come first: the families for the
/// newest GPUs, the families for older GPUs, the ladder from its last rung to its first, and the fallback simt. If
/// estimates are equal, "auto" chooses the first of them.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
