// Finds loads that read the same element for all pairs far from the diagonal. Tables of distances have such loads,
// because their last entries apply to all larger distances.
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

  std::int64_t from = kNowhere;  ///< for distances from this one on, the element is the same for a head and sequence
  /// For distances up to this one, the element is the same. It may differ from the element above.
  std::int64_t until = -kNowhere;

  [[nodiscard]] bool exist() const { return from != kNowhere || until != -kNowhere; }
  /// Returns the ends that are valid for both loads.
  [[nodiscard]] FarEnds beside(const FarEnds& other) const;
};

/// Returns the ends for a load with these subscripts. There are no ends unless the subscripts depend only on q - k and
/// on values that are the same for all pairs of a head. An end must also be within 2^20. The function ignores that
/// subscripts are clamped to the capture's extents, because the extents may change from call to call.
[[nodiscard]] FarEnds far_ends_of(const Graph& graph, std::span<const Id> subscripts);

struct FarLoads {
  std::vector<Id> loads = {};  ///< nodes of the loads
  FarEnds ends = {};           ///< ends that are valid for all these loads
  bool are_all = true;         ///< true if all other loads read the same element for every pair
};

/// Returns the first few loads that have ends among those on which `root` depends. Loads that are the same for all
/// pairs are left out.
[[nodiscard]] FarLoads far_loads_of(const Graph& graph, Id root);

}  // namespace attend::expr
