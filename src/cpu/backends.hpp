// Declares the CPU backends. The dispatcher registers them in its list of backends.
#pragma once

#include <cstdint>

#include "core/backend.hpp"

namespace attend::cpu {

/// Backend `cpu`, defined in fast.cpp. It computes tiles with SIMD instructions on all threads.
const core::Backend& fast_backend();

/// Returns how many forward tasks and backward groups of `cpu` had results with NaN or infinities and were recomputed
/// by the reference. The count includes all calls of this process.
std::int64_t parts_redone();

/// Backend `reference`, defined in reference.cpp. It evaluates the formula in float64 on one thread. Tests compare all
/// other backends with it.
const core::Backend& reference_backend();

/// Backend `cpu_naive`, defined in naive.cpp. It is rung 00 of the ladder (docs/ladder.md): attention as a textbook
/// loop.
const core::Backend& naive_backend();

}  // namespace attend::cpu
