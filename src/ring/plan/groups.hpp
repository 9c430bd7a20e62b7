// Ranks in groups (kTwoLevel): which groups there may be, and the call that each ring of groups makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ring/plan/call.hpp"

namespace attend::ring {

/// One line of an Error that says why there are no groups for the problem, or nothing.
[[nodiscard]] std::optional<std::string> two_level_lack(const core::Problem& problem, int num_ranks);

/// Numbers of members that a group may have, ascending: divisors of num_ranks above 1 and below it, and of the heads.
[[nodiscard]] std::vector<int> group_sizes(const core::Problem& problem, int num_ranks);

/// The call with its ranks in groups.
[[nodiscard]] Call in_groups(const Call& call, int members);

/// The call of this rank's ring of groups.
/// @param share  the problem of the rank's heads
[[nodiscard]] Call call_between_groups(const Call& call, const core::Problem& share);
/// The same of tensors without memory: for checks and estimates.
[[nodiscard]] Call call_between_groups(const Call& call);

}  // namespace attend::ring
