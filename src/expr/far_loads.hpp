// Loads that read one element for all pairs far from the diagonal: those of tables of distances, whose ends stand for
// all distances beyond.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

/// Distances q - k.
struct FarEnds {
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

  std::int64_t from = kNowhere;    ///< from which there is one element for a head and sequence
  std::int64_t until = -kNowhere;  ///< until which there is one; another one than from `from` on, perhaps

  [[nodiscard]] bool exist() const { return from != kNowhere || until != -kNowhere; }
  /// Those of two elements together.
  [[nodiscard]] FarEnds beside(const FarEnds& other) const;
};

/// Of the elements with these subscripts, which follow from q - k, and from what is the same for all pairs of a head.
/// None exist: they do not, or have no such ends within 2^20. The capture's extents do not count, though subscripts are
/// taken within them: they may change from call to call.
[[nodiscard]] FarEnds far_ends_of(const Graph& graph, std::span<const Id> subscripts);

struct FarLoads {
  std::vector<Id> loads = {};  ///< the nodes
  FarEnds ends = {};           ///< of all together
  bool are_all = true;         ///< no other load differs from pair to pair
};

/// Those of the loads on which `root` depends that have ends and are not the same for all pairs anyway, the first few.
[[nodiscard]] FarLoads far_loads_of(const Graph& graph, Id root);

}  // namespace attend::expr
