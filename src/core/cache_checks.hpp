// Checks for ATTEND_CHECK=1 of the arrays of a cache: rows, lengths and pages that do not exist. Without it such
// entries are clamped or skipped, as CacheIndex describes.
#pragma once

#include "core/decode_problem.hpp"

namespace attend::core {

/// Returns whether ATTEND_CHECK is 1.
/// @throws Error if ATTEND_CHECK is neither 0 nor 1.
[[nodiscard]] bool checks_caches();

/// Throws Error naming the first invalid entry. The arrays must be in host memory.
void check_cache_entries(const DecodeProblem& p);

}  // namespace attend::core
