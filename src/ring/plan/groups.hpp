// Groups of ranks (kTwoLevel): the possible group sizes, and the call of each ring of groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// Returns the reason, in one line of an Error, why the problem cannot use groups, if there is one.
[[nodiscard]] std::optional<std::string> two_level_lack(const core::Problem& problem, int num_ranks);

/// Returns the possible group sizes, ascending: divisors of num_ranks and of the heads, greater than 1 and less than
/// num_ranks.
[[nodiscard]] std::vector<int> group_sizes(const core::Problem& problem, int num_ranks);

/// Returns the call with its ranks in groups.
[[nodiscard]] Call in_groups(const Call& call, int members);

/// Returns the call of this rank's ring of groups.
/// @param share  the problem of the rank's heads
[[nodiscard]] Call call_between_groups(const Call& call, const core::Problem& share);
/// Returns the same call with tensors without memory, for checks and estimates.
[[nodiscard]] Call call_between_groups(const Call& call);

}  // namespace attend::ring
