// Derivatives of a function, as nodes of its graph.
#pragma once

#include <cstdint>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Derivatives {
  Id by_score = kNone;
  struct ByLoad {
    Id load;        ///< of floats
    Id derivative;  ///< by the element that is loaded
  };
  std::vector<ByLoad> by_loads;  ///< those that the result depends on, in the order of their nodes
};

/// Adds the derivatives of `result`, a float, to the graph: reverse accumulation, from the result to its operands.
/// Where there is none: that of abs is 0 at 0, of min and max 1/2 for each of two equal operands, of what rounds 0.
/// What ?:, min or max leaves out adds 0, also where it is infinite or NaN.
[[nodiscard]] Derivatives differentiate(Graph& graph, Id result);

/// How a score's derivative varies, which decides the kernels of a backward pass.
enum class Slope : std::uint8_t {
  kOne,      ///< 1, but for steps
  kUniform,  ///< the same for all rows and keys of a head
  kAny,
};
[[nodiscard]] Slope slope_of(const Graph& graph, Id by_score);

}  // namespace attend::expr
