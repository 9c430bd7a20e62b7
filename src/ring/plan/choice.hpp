// The cost model by which kAutomatic chooses.
#pragma once

#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns the estimate of each algorithm. Marks one as chosen: the requested algorithm, or with kAutomatic the
/// supported algorithm with the lowest estimated time. The result is the same on every rank, because nothing is
/// measured.
[[nodiscard]] std::vector<RingCandidate> candidates_of(const Call& call, RingAlgorithm asked);

/// Returns the chosen candidate.
[[nodiscard]] RingCandidate chosen_candidate(const Call& call, RingAlgorithm asked);

/// Returns the number of visible pairs if row i of m sees the keys [band.begin + i, band.end + i) of n.
[[nodiscard]] double visible_pairs(std::int64_t m, std::int64_t n, KeyRange band);

}  // namespace attend::ring
