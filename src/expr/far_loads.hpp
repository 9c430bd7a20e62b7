// Finds loads that read the same element for all pairs of a row and a key far from the diagonal. A load from a table of
// relative positions is an example, because the last entry of the table applies to all larger distances.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

/// Distances q - k beyond which a load always reads the same element.
struct FarEnds {
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

  std::int64_t from = kNowhere;  ///< in each head of each sequence, all distances >= this one read the same element
  /// All distances <= this one read the same element, which may differ from the element for large distances.
  std::int64_t until = -kNowhere;

  [[nodiscard]] bool exist() const { return from != kNowhere || until != -kNowhere; }
  /// Returns the ends that are valid for both loads.
  [[nodiscard]] FarEnds beside(const FarEnds& other) const;
};

/// Returns the ends for a load with these subscripts. A load has ends only if the subscripts depend on nothing except q
/// - k and values that are the same for all pairs of a head. The magnitude of an end must also be at most 2^20. The
/// function ignores that subscripts are clamped to the capture's extents, because the extents may change from call to
/// call.
[[nodiscard]] FarEnds far_ends_of(const Graph& graph, std::span<const Id> subscripts);

struct FarLoads {
  std::vector<Id> loads = {};  ///< nodes of the loads
  FarEnds ends = {};           ///< ends that are valid for all these loads
  bool are_all = true;         ///< true if all other loads read the same element for every pair
};

/// Considers the loads on which `root` depends, and returns the first few of them that have ends. Leaves out loads that
/// read the same element for all pairs.
[[nodiscard]] FarLoads far_loads_of(const Graph& graph, Id root);

}  // namespace attend::expr
