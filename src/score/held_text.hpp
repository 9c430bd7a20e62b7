// Generates source code for held elements: elements of captures that kernels load once for a tile of scores.
#pragma once

#include <cstdint>
#include <string>

#include "expr/graph.hpp"

namespace attend::score {

/// Returns a distance as an int for kernels. It is clamped to values that no distance q - k reaches.
[[nodiscard]] std::int64_t as_int(std::int64_t distance);

/// Source code for a function. `before` has the declarations that must precede CustomScoreCode
/// (kernels/attention/custom_score.cuh). `members` are these members of CustomScoreCode:
///
///   kHoldsAll: no other element varies from pair to pair; if it is false, no element is held, because there are not
///   enough registers
///
///   kHolds: there are held elements; if it is false, the other members exist but are meaningless
///
///   kHeldFrom, kHeldUntil: a tile uses the held elements if q - k >= kHeldFrom for all its pairs, or q - k <=
///   kHeldUntil
///
///   Held: type of the values of the held elements; hold(at, captured) loads them for any pair of the tile
///
///   held_value(at, captured, held): computes value() from the held elements
struct HeldText {
  std::string before = {};
  std::string members = {};

  [[nodiscard]] static HeldText of(const expr::Graph& graph, expr::Id result);
};

}  // namespace attend::score
