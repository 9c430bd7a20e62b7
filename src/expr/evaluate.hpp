// Evaluates a function in float64. Tests compare all other implementations with this one.
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

/// A function that returns an element of a capture. Subscripts are within its extents.
using Load = std::function<double(std::int32_t capture, std::span<const std::int64_t> subscripts)>;

/// Evaluates some nodes of a graph at points. The graph must outlive the object. Not thread-safe.
class Evaluator {
 public:
  Evaluator(const Graph& graph, std::vector<Id> results, Load load);

  /// Returns the values of the result nodes. They are valid until the next call.
  [[nodiscard]] std::span<const double> at(const Point& point);

 private:
  [[nodiscard]] double value_of(const Node& node, const Point& point) const;

  const Graph& graph_;
  std::vector<Id> results_;
  Load load_;
  std::vector<Id> order_;  // nodes on which the results depend, in the order of evaluation
  std::vector<double> values_;
  std::vector<double> of_results_;
};

}  // namespace attend::expr
