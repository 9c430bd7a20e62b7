#include "expr/dual_numbers.hpp"

#include <cmath>
#include <numbers>
#include <vector>

namespace attend::test {
namespace {

using expr::Id;
using expr::Node;
using expr::Op;
using expr::Type;

DualNumber of_float(Op op, const DualNumber& a, const DualNumber& b, double y) {
  const auto chain = [&](double slope) { return DualNumber{y, slope * a.slope}; };
  switch (op) {
    case Op::kNegate:
      return chain(-1);
    case Op::kAbs:
      return chain(a.value > 0 ? 1 : a.value < 0 ? -1 : 0);
    case Op::kExp:
      return chain(std::exp(a.value));
    case Op::kExp2:
      return chain(std::exp2(a.value) * std::numbers::ln2);
    case Op::kLog:
      return chain(1 / a.value);
    case Op::kLog2:
      return chain(std::numbers::log2e / a.value);
    case Op::kLog1p:
      return chain(1 / (1 + a.value));
    case Op::kSqrt:
      return chain(0.5 / std::sqrt(a.value));
    case Op::kRsqrt:
      return chain(-0.5 / (a.value * std::sqrt(a.value)));
    case Op::kSin:
      return chain(std::cos(a.value));
    case Op::kCos:
      return chain(-std::sin(a.value));
    case Op::kTan:
      return chain(1 / (std::cos(a.value) * std::cos(a.value)));
    case Op::kTanh:
      return chain(1 / (std::cosh(a.value) * std::cosh(a.value)));
    case Op::kSigmoid:
      return chain(1 / ((1 + std::exp(-a.value)) * (1 + std::exp(a.value))));
    case Op::kErf:
      return chain(2 / std::sqrt(std::numbers::pi) * std::exp(-a.value * a.value));
    case Op::kAdd:
      return {y, a.slope + b.slope};
    case Op::kSubtract:
      return {y, a.slope - b.slope};
    case Op::kMultiply:
      return {y, a.slope * b.value + a.value * b.slope};
    case Op::kDivide:
      return {y, (a.slope * b.value - a.value * b.slope) / (b.value * b.value)};
    case Op::kFloorMod:
      return {y, a.slope - std::floor(a.value / b.value) * b.slope};
    case Op::kMin:
      return {y, a.value == b.value ? (a.slope + b.slope) / 2 : (a.value < b.value ? a : b).slope};
    case Op::kMax:
      return {y, a.value == b.value ? (a.slope + b.slope) / 2 : (a.value > b.value ? a : b).slope};
    case Op::kPow: {
      const double by_base = b.value == 0 ? 0 : b.value * std::pow(a.value, b.value - 1) * a.slope;
      const double by_exponent = b.slope == 0 || (a.value == 0 && b.value >= 0) ? 0 : y * std::log(a.value) * b.slope;
      return {y, by_base + by_exponent};
    }
    default:
      return {y, 0};
  }
}

}  // namespace

DualNumber dual_of(const expr::Graph& graph, Id result, const expr::Point& point, Id by, const expr::Load& load) {
  std::vector<Id> all;
  for (Id id = 0; id <= result; ++id) all.push_back(id);
  expr::Evaluator evaluator(graph, all, load);
  const auto values = evaluator.at(point);
  std::vector<DualNumber> duals(all.size());
  for (Id id = 0; id <= result; ++id) {
    const Node& node = graph[id];
    const auto arg = [&](std::size_t n) {
      return node.args[n] == expr::kNone ? DualNumber{} : duals[static_cast<std::size_t>(node.args[n])];
    };
    DualNumber& own = duals[static_cast<std::size_t>(id)];
    own = {values[static_cast<std::size_t>(id)], 0};
    if (id == by) {
      own.slope = 1;
    } else if (node.op == Op::kSelect) {
      own.slope = (arg(0).value != 0 ? arg(1) : arg(2)).slope;
    } else if (node.type == Type::kFloat && node.num_args() > 0 && node.op != Op::kToFloat && node.op != Op::kLoad) {
      own = of_float(node.op, arg(0), arg(1), own.value);
    }
  }
  return duals.back();
}

}  // namespace attend::test
