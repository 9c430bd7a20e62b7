// Checks of a cache's arrays, which run only with ATTEND_CHECK=1. They detect rows, lengths and pages that do not
// exist. Without the checks, calls clamp or skip such entries, as CacheIndex describes.
#pragma once

#include "core/decode_problem.hpp"

namespace attend::core {

/// Returns whether ATTEND_CHECK is 1.
/// @throws Error if ATTEND_CHECK is neither 0 nor 1.
[[nodiscard]] bool checks_caches();

/// Checks the arrays, which must be in host memory. Throws Error naming the first invalid entry.
void check_cache_entries(const DecodeProblem& p);

}  // namespace attend::core
