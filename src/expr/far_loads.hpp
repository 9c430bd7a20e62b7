// Loads that read one element for all pairs far from the diagonal: those of tables of distances, whose ends stand for
// all distances beyond.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct FarLoads {
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

  std::vector<Id> loads = {};      ///< the nodes
  std::int64_t from = kNowhere;    ///< q - k from which each of them reads one element of a head and sequence
  std::int64_t until = -kNowhere;  ///< q - k until which each does; another one than from `from` on, perhaps
};

/// Of the loads on which `root` depends, those with subscripts that follow from q - k, and from what is the same for all
/// pairs of a head. Empty: there are none, or they have no such ends within 2^20.
[[nodiscard]] FarLoads far_loads_of(const Graph& graph, Id root);

}  // namespace attend::expr
