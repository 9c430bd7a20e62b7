// Computes values with derivatives by dual numbers x + x' e, where e e = 0. The derivative rules are independent of the
// library.
#pragma once

#include "expr/evaluate.hpp"
#include "expr/graph.hpp"

namespace attend::test {

struct DualNumber {
  double value = 0;
  double slope = 0;
};

/// Returns the value of the node `result` at a point, and its derivative with respect to the earlier node `by`.
[[nodiscard]] DualNumber dual_of(const expr::Graph& graph, expr::Id result, const expr::Point& point, expr::Id by,
                                 const expr::Load& load);

}  // namespace attend::test
