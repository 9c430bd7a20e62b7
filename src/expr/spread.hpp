// Along which lines of pairs of a row and a key a node has one value: sums over pairs can be added up along them first.
#pragma once

#include <cstdint>
#include <span>

#include "expr/graph.hpp"

namespace attend::expr {

enum class Spread : std::uint8_t {
  kUniform,   ///< the same for all rows and keys of a sequence and head
  kRow,       ///< follows from the row
  kKey,       ///< from the key
  kDistance,  ///< from q - k
  kAny,       ///< from both, or from the score
};

/// Of several nodes together. It may be wider than need be: equal functions of q - k are not all known as such.
[[nodiscard]] Spread spread_of(const Graph& graph, std::span<const Id> nodes);

}  // namespace attend::expr
