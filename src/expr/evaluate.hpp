// Values of a function in float64. Tests compare all other implementations with them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

/// A value for each Variable.
using Point = std::array<double, kVariables>;

/// Returns an element of a capture; subscripts are within its extents.
using Load = std::function<double(std::int32_t capture, std::span<const std::int64_t> subscripts)>;

/// Evaluates some nodes of a graph at points. The graph must outlive the object. For one thread.
class Evaluator {
 public:
  Evaluator(const Graph& graph, std::vector<Id> results, Load load);

  /// Returns the results' values, valid until the next call.
  [[nodiscard]] std::span<const double> at(const Point& point);

 private:
  [[nodiscard]] double value_of(const Node& node, const Point& point) const;

  const Graph& graph_;
  std::vector<Id> results_;
  Load load_;
  std::vector<Id> order_;  // the nodes that results need, in order
  std::vector<double> values_;
  std::vector<double> of_results_;
};

}  // namespace attend::expr
