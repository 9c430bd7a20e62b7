#include "ring/plan/groups.hpp"

#include <fmt/format.h>

#include "ring/plan/head_share.hpp"

namespace attend::ring {

std::vector<int> group_sizes(const core::Problem& p, int num_ranks) {
  std::vector<int> sizes;
  for (int members = 2; members < num_ranks; ++members) {
    if (num_ranks % members == 0 && p.num_heads_q % members == 0 && p.num_heads_k % members == 0) {
      sizes.push_back(members);
    }
  }
  return sizes;
}

std::optional<std::string> two_level_lack(const core::Problem& p, int num_ranks) {
  if (group_sizes(p, num_ranks).empty()) {
    return fmt::format(
        "num_ranks: {} with {} heads of q and {} of k, allowed with algorithm two_level: a larger multiple of a "
        "number above 1 that divides both",
        num_ranks, p.num_heads_q, p.num_heads_k);
  }
  return scores_lack(p, RingAlgorithm::kTwoLevel);
}

Call in_groups(const Call& call, int members) {
  Call grouped = call;
  grouped.algorithm = RingAlgorithm::kTwoLevel;
  grouped.groups = {members, call.plan.num_ranks() / members, call.plan.sharding() == Sharding::kStriped};
  grouped.group_plan = call.plan.of_groups(grouped.groups);
  return grouped;
}

Call call_between_groups(const Call& call, const core::Problem& share) {
  Call inner = call;
  inner.problem = share;
  inner.plan = call.group_plan;
  inner.algorithm = RingAlgorithm::kExchange;
  inner.heads = {call.groups.members, call.groups.member(call.plan.rank()), 0};
  return inner;
}

Call call_between_groups(const Call& call) {
  return call_between_groups(call, share_without_memory(call).problem);
}

}  // namespace attend::ring
