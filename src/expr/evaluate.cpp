#include "expr/evaluate.hpp"

#include <algorithm>
#include <utility>

namespace attend::expr {

Evaluator::Evaluator(const Graph& graph, std::vector<Id> results, Load load)
    : graph_(graph),
      results_(std::move(results)),
      load_(std::move(load)),
      values_(graph.size()),
      of_results_(results_.size()) {
  const std::vector<bool> needed = graph.needed_by(results_);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    if (needed[n]) order_.push_back(static_cast<Id>(n));
  }
}

double Evaluator::value_of(const Node& node, const Point& point) const {
  const auto arg = [&](std::size_t n) {
    return node.args[n] == kNone ? 0.0 : values_[static_cast<std::size_t>(node.args[n])];
  };
  if (node.op == Op::kConstant) return node.value;
  if (node.op == Op::kVariable) return point[static_cast<std::size_t>(node.which)];
  if (node.op == Op::kLoad) {
    const std::vector<std::int64_t>& shape = graph_.captures()[static_cast<std::size_t>(node.which)].shape;
    std::array<std::int64_t, kMostSubscripts> subscripts = {};
    for (std::size_t n = 0; n < shape.size(); ++n) {
      subscripts[n] = std::clamp<std::int64_t>(static_cast<std::int64_t>(arg(n)), 0, shape[n] - 1);
    }
    return load_(node.which, {subscripts.data(), shape.size()});
  }
  return apply(node.op, graph_.operand_type(node), arg(0), arg(1), arg(2));
}

std::span<const double> Evaluator::at(const Point& point) {
  for (const Id id : order_) values_[static_cast<std::size_t>(id)] = value_of(graph_[id], point);
  for (std::size_t n = 0; n < results_.size(); ++n) of_results_[n] = values_[static_cast<std::size_t>(results_[n])];
  return of_results_;
}

}  // namespace attend::expr
