// The CPU backends, for the dispatcher's list.
#pragma once

#include "core/backend.hpp"

namespace attend::cpu {

/// `cpu`: tiled, SIMD, threads. fast.cpp
const core::Backend& fast_backend();

/// `reference`: float64, one thread, reads like the formula; the truth for everything. reference.cpp
const core::Backend& reference_backend();

/// `cpu_naive`: rung 00 of the ladder, the textbook loop. naive.cpp
const core::Backend& naive_backend();

}  // namespace attend::cpu
