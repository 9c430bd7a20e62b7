// The cost model that kAutomatic uses to choose an algorithm.
#pragma once

#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns an estimate for each algorithm and marks one as chosen. If `asked` is kAutomatic, that is the supported
/// algorithm with the lowest estimated time. Otherwise it is `asked`. The result is the same on every rank, because the
/// model measures nothing.
[[nodiscard]] std::vector<RingCandidate> candidates_of(const Call& call, RingAlgorithm asked);

/// Returns the candidate that candidates_of() marks as chosen.
[[nodiscard]] RingCandidate chosen_candidate(const Call& call, RingAlgorithm asked);

/// Returns the number of visible (row, key) pairs among m rows and n keys. Row i sees the existing keys in [band.begin
/// + i, band.end + i).
[[nodiscard]] double visible_pairs(std::int64_t m, std::int64_t n, KeyRange band);

}  // namespace attend::ring
