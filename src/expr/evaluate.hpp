// The values of a function, in float64: what every other way to compute it is compared with.
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

/// An element of a capture, of subscripts within its extents.
using Load = std::function<double(std::int32_t capture, std::span<const std::int64_t> subscripts)>;

/// Computes some nodes of a graph, which must outlive it, at one point after the other. For one thread.
class Evaluator {
 public:
  Evaluator(const Graph& graph, std::vector<Id> results, Load load);

  /// The results' values, until the next call.
  [[nodiscard]] std::span<const double> at(const Point& point);

 private:
  [[nodiscard]] double value_of(const Node& node, const Point& point) const;

  const Graph& graph_;
  std::vector<Id> results_;
  Load load_;
  std::vector<Id> order_;  // of the nodes that results need
  std::vector<double> values_;
  std::vector<double> of_results_;
};

}  // namespace attend::expr
