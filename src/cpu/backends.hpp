// The CPU backends, for the dispatcher's list.
#pragma once

#include <cstdint>

#include "core/backend.hpp"

namespace attend::cpu {

/// `cpu`: tiled, SIMD, threads. fast.cpp
const core::Backend& fast_backend();

/// Tasks and groups that `cpu` has had the reference do again in this process, for that their results were not finite.
std::int64_t parts_redone();

/// `reference`: float64, one thread, reads like the formula; the truth for everything. reference.cpp
const core::Backend& reference_backend();

/// `cpu_naive`: rung 00 of the ladder, the textbook loop. naive.cpp
const core::Backend& naive_backend();

}  // namespace attend::cpu
