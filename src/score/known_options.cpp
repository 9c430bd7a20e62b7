#include "score/known_options.hpp"

#include <optional>

#include "kernels/attention/score_transform.cuh"

namespace attend::score {
namespace {

using expr::Graph;
using expr::Id;
using expr::Node;
using expr::Op;
using expr::Variable;

bool is_variable(const Graph& graph, Id id, Variable which) {
  return graph[id].op == Op::kVariable && static_cast<Variable>(graph[id].which) == which;
}

/// Describes an integer expression that is |q - k|, q - k, or the negative of one of them.
struct Distance {
  core::AlibiForm form = core::AlibiForm::kNone;
  bool is_negative = false;
};

Distance distance_of(const Graph& graph, Id id) {
  const Node& node = graph[id];
  if (node.op == Op::kSubtract) {
    const auto is = [&](std::size_t n, Variable which) { return is_variable(graph, node.args[n], which); };
    if (is(0, Variable::kRow) && is(1, Variable::kKey)) return {core::AlibiForm::kKeysBefore, false};
    if (is(0, Variable::kKey) && is(1, Variable::kRow)) return {core::AlibiForm::kKeysBefore, true};
  }
  if (node.op == Op::kAbs && distance_of(graph, node.args[0]).form == core::AlibiForm::kKeysBefore) {
    return {core::AlibiForm::kDistance, false};
  }
  if (node.op == Op::kNegate && graph[node.args[0]].op == Op::kAbs) {
    const Distance of = distance_of(graph, node.args[0]);
    return {of.form, !of.is_negative};
  }
  return {};
}

/// If the node is slope[h] times a Distance, returns the Distance.
Distance slope_times_distance(const Graph& graph, Id id) {
  const Node& product = graph[id];
  if (product.op != Op::kMultiply) return {};
  for (std::size_t n = 0; n < 2; ++n) {
    const Node& slope = graph[product.args[n]];
    const Node& distance = graph[product.args[1 - n]];
    const bool is_slope =
        slope.op == Op::kLoad && slope.num_args() == 1 && is_variable(graph, slope.args[0], Variable::kHead);
    if (is_slope && distance.op == Op::kToFloat) return distance_of(graph, distance.args[0]);
  }
  return {};
}

}  // namespace

double softcap_of(const expr::Graph& graph, expr::Id id) {
  const expr::Node& product = graph[id];
  if (product.op != expr::Op::kMultiply) return 0;
  const bool is_first = graph[product.args[0]].op == expr::Op::kConstant;
  const expr::Node& cap = graph[product.args[is_first ? 0 : 1]];
  const expr::Node& tanh = graph[product.args[is_first ? 1 : 0]];
  if (cap.op != expr::Op::kConstant || tanh.op != expr::Op::kTanh) return 0;
  const expr::Node& inner = graph[tanh.args[0]];
  const auto is_score = [&](expr::Id part) {
    return graph[part].op == expr::Op::kVariable && graph[part].type == expr::Type::kFloat;
  };
  const bool divides =
      inner.op == expr::Op::kDivide && is_score(inner.args[0]) && graph.is_constant(inner.args[1], cap.value);
  const auto multiplies = [&](std::size_t score, std::size_t factor) {
    return inner.op == expr::Op::kMultiply && is_score(inner.args[score]) &&
           graph.is_constant(inner.args[factor], 1 / cap.value);
  };
  const bool is_softcap = divides || multiplies(0, 1) || multiplies(1, 0);
  const bool is_allowed = cap.value >= kSmallestCapByReciprocal && cap.value <= kLargestCapByReciprocal;
  return is_softcap && is_allowed ? cap.value : 0;
}

core::AlibiForm alibi_of(const Graph& graph, Id id) {
  const Node& sum = graph[id];
  if (graph.captures().size() != 1 || (sum.op != Op::kAdd && sum.op != Op::kSubtract)) return core::AlibiForm::kNone;
  const bool is_swapped = sum.op == Op::kAdd && !is_variable(graph, sum.args[0], Variable::kScore);
  if (!is_variable(graph, sum.args[is_swapped ? 1 : 0], Variable::kScore)) return core::AlibiForm::kNone;
  const Distance distance = slope_times_distance(graph, sum.args[is_swapped ? 0 : 1]);
  return distance.is_negative == (sum.op == Op::kAdd) ? distance.form : core::AlibiForm::kNone;
}

}  // namespace attend::score
