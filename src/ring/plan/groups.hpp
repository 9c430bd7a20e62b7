// Groups of ranks for kTwoLevel: the possible group sizes, and the calls that run between groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns the reason why the problem cannot use groups, as one line for an Error. Returns nothing if it can.
[[nodiscard]] std::optional<std::string> two_level_lack(const core::Problem& problem, int num_ranks);

/// Returns the possible group sizes in ascending order. A possible size divides num_ranks and both numbers of heads. It
/// is greater than 1 and less than num_ranks.
[[nodiscard]] std::vector<int> group_sizes(const core::Problem& problem, int num_ranks);

/// Returns a copy of the call with the algorithm kTwoLevel and groups of `members` ranks.
[[nodiscard]] Call in_groups(const Call& call, int members);

/// Returns the call that this rank makes in the ring between groups, in which each group acts as one rank.
/// @param share  the problem with this rank's share of the heads
[[nodiscard]] Call call_between_groups(const Call& call, const core::Problem& share);
/// Returns the same call for checks and estimates. Its tensors have no memory.
[[nodiscard]] Call call_between_groups(const Call& call);

}  // namespace attend::ring
