// The spread of a node describes for which (row, key) pairs the node has the same value. If the value is the same for
// many pairs, gradients can first be summed over these pairs.
#pragma once

#include <cstdint>
#include <span>

#include "expr/graph.hpp"

namespace attend::expr {

enum class Spread : std::uint8_t {
  kUniform,   ///< same value for all rows and keys of a sequence and head
  kRow,       ///< depends only on the row
  kKey,       ///< depends only on the key
  kDistance,  ///< depends only on q - k
  kAny,       ///< depends on row and key, or on the score
};

/// Returns the spread of several nodes together. The result may be kAny although the nodes depend only on q - k,
/// because not all such functions are recognised.
[[nodiscard]] Spread spread_of(const Graph& graph, std::span<const Id> nodes);

}  // namespace attend::expr
