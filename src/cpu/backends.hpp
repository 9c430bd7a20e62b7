// The CPU backends, for the dispatcher's list.
#pragma once

#include <cstdint>

#include "core/backend.hpp"

namespace attend::cpu {

/// Backend `cpu`: tiles, SIMD, threads. Defined in fast.cpp.
const core::Backend& fast_backend();

/// Returns the number of tasks and groups in this process that the reference has recomputed for `cpu`, because their
/// results were not finite.
std::int64_t parts_redone();

/// Backend `reference`: float64, one thread, follows the formula; tests compare all other backends with it. Defined in
/// reference.cpp.
const core::Backend& reference_backend();

/// Backend `cpu_naive`: rung 00 of the ladder, the textbook loop. Defined in naive.cpp.
const core::Backend& naive_backend();

}  // namespace attend::cpu
