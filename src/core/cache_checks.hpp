// What ATTEND_CHECK=1 looks for in the arrays of a cache: rows, lengths and pages that do not exist. Without it they
// are clamped or skipped, as CacheIndex says.
#pragma once

#include "core/decode_problem.hpp"

namespace attend::core {

/// Does the environment ask for it?
/// @throws Error if ATTEND_CHECK is neither 0 nor 1.
[[nodiscard]] bool checks_caches();

/// Throws Error naming the first entry at fault. Of a problem whose arrays lie in memory of the host.
void check_cache_entries(const DecodeProblem& p);

}  // namespace attend::core
