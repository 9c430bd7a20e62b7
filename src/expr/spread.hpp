// The pairs of a row and a key for which a node has a single value. Sums over pairs can first be added over such pairs.
#pragma once

#include <cstdint>
#include <span>

#include "expr/graph.hpp"

namespace attend::expr {

enum class Spread : std::uint8_t {
  kUniform,   ///< the same for all rows and keys of a sequence and head
  kRow,       ///< depends only on the row
  kKey,       ///< depends only on the key
  kDistance,  ///< depends only on q - k
  kAny,       ///< depends on row and key, or on the score
};

/// Returns the spread of several nodes together. It may be wider than necessary, because not all functions of q - k are
/// recognised.
[[nodiscard]] Spread spread_of(const Graph& graph, std::span<const Id> nodes);

}  // namespace attend::expr
