// The spread of a node: the set of (row, key) pairs over which its value varies. If the value is the same for many
// pairs, gradients can first be summed over these pairs.
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

/// Returns the combined spread of several nodes. It may be wider than necessary, because not all functions of q - k are
/// recognised.
[[nodiscard]] Spread spread_of(const Graph& graph, std::span<const Id> nodes);

}  // namespace attend::expr
