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
/// to its operands. The following values are used at points where no derivative exists. The derivative of abs at 0 is
/// 0. If the operands of min or max are equal, the derivative for each of them is 1/2. The derivative of rounding is 0
/// everywhere. An operand that ?:, min or max does not choose contributes 0, even if it is infinite or NaN.
[[nodiscard]] Derivatives differentiate(Graph& graph, Id result);

/// States for which scores the derivative of a function with respect to the score is the same. The choice of kernels
/// for a backward pass depends on this property.
enum class Slope : std::uint8_t {
  kOne,      ///< always 1, except at steps of the function
  kUniform,  ///< the same for all rows and keys of a head
  kAny,
};
[[nodiscard]] Slope slope_of(const Graph& graph, Id by_score);

}  // namespace attend::expr
