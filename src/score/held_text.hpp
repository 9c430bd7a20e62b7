// Source code for elements of captures that kernels load once for a tile of scores.
#pragma once

#include <cstdint>
#include <string>

#include "expr/graph.hpp"

namespace attend::score {

/// Returns a distance as an int for kernels, clamped to values that no distance reaches.
[[nodiscard]] std::int64_t as_int(std::int64_t distance);

/// Source code of a function: declarations before CustomScoreCode (kernels/attention/custom_score.cuh), and its members
///
///   kHoldsAll: no other element varies from pair to pair. Otherwise no element is held, for lack of registers
///
///   kHolds: there are held elements. If false, the other members exist but are meaningless
///
///   kHeldFrom, kHeldUntil: tiles whose q - k are all >= kHeldFrom, or all <= kHeldUntil, load the same elements
///
///   Held: values of the held elements; hold(at, captured): loads them, at any pair of the tile
///
///   held_value(at, captured, held): computes value() with them
struct HeldText {
  std::string before = {};
  std::string members = {};

  [[nodiscard]] static HeldText of(const expr::Graph& graph, expr::Id result);
};

}  // namespace attend::score
