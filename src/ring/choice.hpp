// The model of time by which kAutomatic chooses, and what explain_ring() prints of it.
#pragma once

#include <vector>

#include "ring/call.hpp"

namespace attend::ring {

/// The algorithm asked for, or with kAutomatic that of the least estimated time among those that can. The same on every
/// rank: nothing of it is measured.
[[nodiscard]] RingCandidate chosen_candidate(const Call& call, RingAlgorithm asked);

/// Row i of m sees the keys [band.begin + i, band.end + i) of n: how many pairs that are.
[[nodiscard]] double visible_pairs(std::int64_t m, std::int64_t n, KeyRange band);

}  // namespace attend::ring
