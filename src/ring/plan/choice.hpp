// The model of time by which kAutomatic chooses.
#pragma once

#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Each algorithm's estimate. Marks one as chosen: the algorithm asked for, or with kAutomatic the one of the least
/// estimated time among those that can. The same on every rank, as nothing is measured.
[[nodiscard]] std::vector<RingCandidate> candidates_of(const Call& call, RingAlgorithm asked);

/// The chosen one.
[[nodiscard]] RingCandidate chosen_candidate(const Call& call, RingAlgorithm asked);

/// Row i of m sees the keys [band.begin + i, band.end + i) of n: how many pairs that are.
[[nodiscard]] double visible_pairs(std::int64_t m, std::int64_t n, KeyRange band);

}  // namespace attend::ring
