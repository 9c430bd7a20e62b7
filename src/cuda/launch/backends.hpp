// The list of GPU backends from which the dispatcher chooses.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace attend::cuda {

/// Returns one backend per kernel family. Error messages list the backends in this order. The families for the newest
/// GPUs are first, and the families for older GPUs follow. After them come the tutorial kernels (the ladder), from the
/// last rung to the first. The fallback simt is last. If several backends have the same estimated time, "auto" chooses
/// the first of them.
[[nodiscard]] std::span<const core::Backend> backends();

}  // namespace attend::cuda
