// Generates source code for held elements: elements of captures that kernels load once for a tile of scores.
#pragma once

#include <cstdint>
#include <string>

#include "expr/graph.hpp"

namespace attend::score {

/// Returns a distance in the range of int, for use in kernels. Larger distances are clamped to limits that no q - k
/// reaches.
[[nodiscard]] std::int64_t as_int(std::int64_t distance);

/// Source code for a function. `before` has the declarations that must precede CustomScoreCode
/// (kernels/attention/custom_score.cuh). `members` are these members of CustomScoreCode:
///
///   kHoldsAll is true if all elements that vary from pair to pair can be held. If it is false, no element is held,
///   because there are not enough registers.
///
///   kHolds is true if there are held elements. If it is false, the other members exist but are meaningless.
///
///   kHeldFrom and kHeldUntil are limits of q - k. A tile uses the held elements if all its pairs have q - k >=
///   kHeldFrom, or if all its pairs have q - k <= kHeldUntil.
///
///   Held is the type that stores the values of the held elements. hold(at, captured) loads these values, and `at` may
///   be any pair of the tile.
///
///   held_value(at, captured, held) computes value() from the held elements.
struct HeldText {
  std::string before = {};
  std::string members = {};

  [[nodiscard]] static HeldText of(const expr::Graph& graph, expr::Id result);
};

}  // namespace attend::score
