#include "expr/spread.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace attend::expr {
namespace {

/// The spread of a node. If the value has the form row * q + key * k + c, where c is the same for all pairs, also
/// stores the factors `row` and `key`.
struct Form {
  Spread spread = Spread::kUniform;
  bool is_linear = true;
  std::int64_t row = 0, key = 0;
};

Spread joined(Spread a, Spread b) {
  if (a == b || b == Spread::kUniform) return a;
  return a == Spread::kUniform ? b : Spread::kAny;
}

Form linear(std::int64_t row, std::int64_t key) {
  if (row == 0 && key == 0) return {};
  const Spread spread = key == 0      ? Spread::kRow
                        : row == 0    ? Spread::kKey
                        : row == -key ? Spread::kDistance
                                      : Spread::kAny;
  return {spread, true, row, key};
}

Form of_variable(Variable variable) {
  switch (variable) {
    case Variable::kScore:
      return {Spread::kAny, false};
    case Variable::kRow:
      return linear(1, 0);
    case Variable::kKey:
      return linear(0, 1);
    default:
      return {};
  }
}

/// Returns the form of an operation. The form has factors only if they are small, because repeated doubling could make
/// a factor arbitrarily large.
Form of_operation(const Graph& graph, const Node& node, const std::vector<Form>& forms) {
  constexpr std::int64_t kMostFactor = 1 << 20;
  const auto form = [&](std::size_t n) { return forms[static_cast<std::size_t>(node.args[n])]; };
  const bool is_sum = node.op == Op::kAdd || node.op == Op::kSubtract;
  const auto is_whole = [&](std::size_t n) { return graph[node.args[n]].op == Op::kToFloat; };
  // A sum of floats is exact if both operands are converted integers. Other sums of floats are rounded.
  const bool is_exact = node.type != Type::kFloat || (is_sum && is_whole(0) && is_whole(1));
  if (is_sum && is_exact && form(0).is_linear && form(1).is_linear) {
    const Form a = form(0), b = form(1);
    const std::int64_t sign = node.op == Op::kAdd ? 1 : -1;
    const Form sum = linear(a.row + sign * b.row, a.key + sign * b.key);
    if (std::max(std::abs(sum.row), std::abs(sum.key)) <= kMostFactor) return sum;
  }
  if ((node.op == Op::kNegate || node.op == Op::kToFloat) && form(0).is_linear) {
    const std::int64_t sign = node.op == Op::kNegate ? -1 : 1;
    return linear(sign * form(0).row, sign * form(0).key);
  }
  if (node.op == Op::kMultiply && form(0).is_linear && form(1).is_linear) {
    for (std::size_t n = 0; n < 2; ++n) {
      const Node& factor = graph[node.args[n]];
      const bool is_number = factor.op == Op::kConstant && factor.type == Type::kInt && std::abs(factor.value) <= 1024;
      const Form of = form(1 - n);
      if (!is_number || std::max(std::abs(of.row), std::abs(of.key)) > kMostFactor / 1024) continue;
      return linear(of.row * static_cast<std::int64_t>(factor.value), of.key * static_cast<std::int64_t>(factor.value));
    }
  }
  Form all = {Spread::kUniform, false};
  for (std::size_t n = 0; n < node.num_args(); ++n) all.spread = joined(all.spread, form(n).spread);
  all.is_linear = all.spread == Spread::kUniform;
  return all;
}

}  // namespace

Spread spread_of(const Graph& graph, std::span<const Id> nodes) {
  std::vector<Form> forms;
  Spread all = Spread::kUniform;
  const Id last = nodes.empty() ? kNone : *std::max_element(nodes.begin(), nodes.end());
  for (Id id = 0; id <= last; ++id) {
    const Node& node = graph[id];
    forms.push_back(node.op == Op::kConstant   ? Form{}
                    : node.op == Op::kVariable ? of_variable(static_cast<Variable>(node.which))
                                               : of_operation(graph, node, forms));
  }
  for (const Id id : nodes) all = joined(all, forms[static_cast<std::size_t>(id)].spread);
  return all;
}

}  // namespace attend::expr
