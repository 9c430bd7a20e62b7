// Loads that read the same element for all pairs far from the diagonal. Tables of distances have such loads: their last
// entries stand for all larger distances.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

/// Distances q - k beyond which a load reads a single element.
struct FarEnds {
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

  std::int64_t from = kNowhere;  ///< first distance from which the element is the same for a head and sequence
  /// last distance up to which the element is the same; this element may differ from the one above
  std::int64_t until = -kNowhere;

  [[nodiscard]] bool exist() const { return from != kNowhere || until != -kNowhere; }
  /// Returns the ends that are valid for both elements.
  [[nodiscard]] FarEnds beside(const FarEnds& other) const;
};

/// Returns the ends for elements with these subscripts. The subscripts must depend only on q - k and on values that are
/// the same for all pairs of a head, and must have an end within 2^20; otherwise no ends exist. The clamping of
/// subscripts to the capture's extents is ignored, because extents may change from call to call.
[[nodiscard]] FarEnds far_ends_of(const Graph& graph, std::span<const Id> subscripts);

struct FarLoads {
  std::vector<Id> loads = {};  ///< nodes of the loads
  FarEnds ends = {};           ///< ends that are valid for all of them
  bool are_all = true;         ///< true if no other load differs from pair to pair
};

/// Returns the first few loads that `root` depends on and that have ends, without loads that are the same for all
/// pairs.
[[nodiscard]] FarLoads far_loads_of(const Graph& graph, Id root);

}  // namespace attend::expr
