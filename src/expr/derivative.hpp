// Derivatives of a function, as nodes of its graph.
#pragma once

#include <cstdint>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Derivatives {
  Id by_score = kNone;
  struct ByLoad {
    Id load;        ///< a load of floats
    Id derivative;  ///< derivative by the loaded element
  };
  std::vector<ByLoad> by_loads;  ///< loads that the result depends on, in the order of their nodes
};

/// Adds the derivatives of `result`, a float, to the graph by reverse accumulation, from the result to its operands.
/// Conventions where no derivative exists: abs has 0 at 0; min and max have 1/2 for each of two equal operands;
/// rounding has 0. An operand that ?:, min or max does not choose contributes 0, even if it is infinite or NaN.
[[nodiscard]] Derivatives differentiate(Graph& graph, Id result);

/// How a score's derivative varies. Determines the kernels of a backward pass.
enum class Slope : std::uint8_t {
  kOne,      ///< 1, except at steps
  kUniform,  ///< the same for all rows and keys of a head
  kAny,
};
[[nodiscard]] Slope slope_of(const Graph& graph, Id by_score);

}  // namespace attend::expr
