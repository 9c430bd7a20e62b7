// Elements of captures that kernels read once for a tile of scores.
#pragma once

#include <cstdint>
#include <string>

#include "expr/graph.hpp"

namespace attend::score {

/// A distance as kernels count them: an int, whose ends no distance reaches.
[[nodiscard]] std::int64_t as_int(std::int64_t distance);

/// Of a function: what comes before CustomScoreCode (kernels/attention/custom_score.cuh), and its members
///
///   kHoldsAll: does no other element differ from pair to pair? Where one does, none is held: registers do not suffice
///   kHolds: are there such elements? If not, the others are there and mean nothing
///   kHeldFrom, kHeldUntil: a tile whose every q - k is from kHeldFrom on, or to kHeldUntil, reads the same ones
///   Held: their values; hold(at, captured): reads them, at any pair of the tile
///   held_value(at, captured, held): value() with them
struct HeldText {
  std::string before = {};
  std::string members = {};

  [[nodiscard]] static HeldText of(const expr::Graph& graph, expr::Id result);
};

}  // namespace attend::score
