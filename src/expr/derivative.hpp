// Computes the derivatives of a function as nodes of its graph.
#pragma once

#include <cstdint>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Derivatives {
  Id by_score = kNone;
  struct ByLoad {
    Id load;        ///< a load of floats
    Id derivative;  ///< derivative of the result with respect to the loaded element
  };
  std::vector<ByLoad> by_loads;  ///< loads on which the result depends, in the order of their nodes
};

/// Adds the derivatives of `result`, which must be a float, to the graph. It uses reverse accumulation, from the result
/// to its operands. These conventions hold if no derivative exists: the derivative of abs at 0 is 0; min and max have
/// the derivative 1/2 for each of two equal operands; rounding has the derivative 0. An operand that ?:, min or max
/// does not choose contributes 0, even if it is infinite or NaN.
[[nodiscard]] Derivatives differentiate(Graph& graph, Id result);

/// How much the derivative of a function with respect to the score varies. It determines the kernels of a backward
/// pass.
enum class Slope : std::uint8_t {
  kOne,      ///< always 1, except at steps of the function
  kUniform,  ///< the same for all rows and keys of a head
  kAny,
};
[[nodiscard]] Slope slope_of(const Graph& graph, Id by_score);

}  // namespace attend::expr
