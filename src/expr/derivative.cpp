// Source: Griewank & Walther, Evaluating Derivatives (2008), section 3.2, the incremental reverse mode
#include "expr/derivative.hpp"

#include <numbers>

namespace attend::expr {
namespace {

class Reverse {
 public:
  Reverse(Graph& graph, Id result) : g_(graph), adjoints_(static_cast<std::size_t>(result) + 1, kNone) {
    adjoints_.back() = g_.number(1);
    for (Id id = result; id >= 0; --id) {
      if (adjoint(id) != kNone && g_.type(id) == Type::kFloat) pass_on(id, adjoint(id));
    }
  }

  [[nodiscard]] Id adjoint(Id id) const { return adjoints_[static_cast<std::size_t>(id)]; }

 private:
  void add(Id to, Id derivative) {
    if (g_.is_constant(derivative, 0)) return;
    Id& sum = adjoints_[static_cast<std::size_t>(to)];
    sum = sum == kNone ? derivative : g_.make(Op::kAdd, sum, derivative);
  }

  /// f(d); where d is a choice between something and 0, a choice between f of that and 0: what is not chosen may be
  /// infinite or NaN, and so would be 0 times that.
  template <class F>
  Id of_chosen(Id d, const F& f) {  // NOLINT(misc-no-recursion): as deep as choices are within each other
    const Node node = g_[d];
    if (node.op != Op::kSelect) return f(d);
    const auto [condition, yes, no, none] = node.args;
    if (g_.is_constant(no, 0)) return where(condition, of_chosen(yes, f), no);
    return g_.is_constant(yes, 0) ? where(condition, yes, of_chosen(no, f)) : f(d);
  }

  // Of an adjoint d.
  Id times(Id d, Id factor) {
    return of_chosen(d, [&](Id x) { return g_.make(Op::kMultiply, x, factor); });
  }
  Id over(Id d, Id divisor) {
    return of_chosen(d, [&](Id x) { return g_.make(Op::kDivide, x, divisor); });
  }
  Id negative(Id d) {
    return of_chosen(d, [&](Id x) { return g_.make(Op::kNegate, x); });
  }
  Id minus(Id a, Id b) { return g_.make(Op::kSubtract, a, b); }
  Id number(double x) { return g_.number(x); }
  Id where(Id condition, Id a, Id b) { return g_.make(Op::kSelect, condition, a, b); }

  /// Adds the node's derivatives by its operands, times its own adjoint d.
  void pass_on(Id y, Id d) {
    const Node node = g_[y];
    const Id a = node.args[0], b = node.args[1];
    switch (node.op) {
      case Op::kAdd:
        return add(a, d), add(b, d);
      case Op::kSubtract:
        return add(a, d), add(b, negative(d));
      case Op::kMultiply:
        return add(a, times(d, b)), add(b, times(d, a));
      case Op::kDivide:
        return add(a, over(d, b)), add(b, negative(over(times(d, y), b)));
      case Op::kFloorMod:
        return add(a, d), add(b, negative(times(d, g_.make(Op::kFloor, over(a, b)))));
      case Op::kMin:
        return add(a, share(a, b, d)), add(b, share(b, a, d));
      case Op::kMax:
        return add(a, share(b, a, d)), add(b, share(a, b, d));
      case Op::kPow:
        return pass_to_power(y, a, b, d);
      case Op::kSelect:
        return add(b, where(a, d, number(0))), add(node.args[2], where(a, number(0), d));
      case Op::kConstant:
      case Op::kVariable:
      case Op::kLoad:
      case Op::kToFloat:
        return;
      default:
        return pass_to_one(node.op, y, a, d);
    }
  }

  void pass_to_one(Op op, Id y, Id a, Id d) {
    switch (op) {
      case Op::kNegate:
        return add(a, negative(d));
      case Op::kAbs:
        return add(a, times(d, g_.make(Op::kSign, a)));
      case Op::kExp:
        return add(a, times(d, y));
      case Op::kExp2:
        return add(a, times(d, times(y, number(std::numbers::ln2))));
      case Op::kLog:
        return add(a, over(d, a));
      case Op::kLog2:
        return add(a, over(d, times(a, number(std::numbers::ln2))));
      case Op::kLog1p:
        return add(a, over(d, g_.make(Op::kAdd, a, number(1))));
      case Op::kSqrt:
        return add(a, over(d, times(number(2), y)));
      case Op::kRsqrt:
        return add(a, times(d, times(number(-0.5), times(y, times(y, y)))));
      case Op::kSin:
        return add(a, times(d, g_.make(Op::kCos, a)));
      case Op::kCos:
        return add(a, negative(times(d, g_.make(Op::kSin, a))));
      case Op::kTan:
        return add(a, times(d, g_.make(Op::kAdd, times(y, y), number(1))));
      case Op::kTanh:
        return add(a, times(d, minus(number(1), times(y, y))));
      case Op::kSigmoid:
        return add(a, times(d, times(y, minus(number(1), y))));
      case Op::kErf: {
        const Id bell = g_.make(Op::kExp, negative(times(a, a)));
        return add(a, times(d, times(bell, number(2 * std::numbers::inv_sqrtpi))));
      }
      default:
        return;  // what rounds, or gives a sign, is constant but for its steps
    }
  }

  /// d where `smaller` is smaller, half of it where they are equal, else 0.
  Id share(Id smaller, Id larger, Id d) {
    const Id of_unequal = where(g_.make(Op::kLess, smaller, larger), d, number(0));
    return where(g_.make(Op::kEqual, smaller, larger), times(d, number(0.5)), of_unequal);
  }

  void pass_to_power(Id y, Id a, Id b, Id d) {
    const Id zero = number(0);
    const Id slope = times(b, g_.make(Op::kPow, a, minus(b, number(1))));
    add(a, where(g_.make(Op::kEqual, b, zero), zero, times(d, slope)));
    const Id at_zero = g_.make(Op::kAnd, g_.make(Op::kEqual, a, zero), g_.make(Op::kLessEqual, zero, b));
    add(b, where(at_zero, zero, times(d, times(y, g_.make(Op::kLog, a)))));
  }

  Graph& g_;
  std::vector<Id> adjoints_;
};

}  // namespace

Derivatives differentiate(Graph& graph, Id result) {
  const Reverse reverse(graph, result);
  Derivatives all;
  for (Id id = 0; id <= result; ++id) {
    const Node& node = graph[id];
    if (reverse.adjoint(id) == kNone) continue;
    const bool is_score = node.op == Op::kVariable && node.type == Type::kFloat;
    if (is_score) all.by_score = reverse.adjoint(id);
    if (node.op == Op::kLoad && node.type == Type::kFloat) all.by_loads.push_back({id, reverse.adjoint(id)});
  }
  if (all.by_score == kNone) all.by_score = graph.number(0);
  return all;
}

Slope slope_of(const Graph& graph, Id by_score) {
  if (graph.is_constant(by_score, 1)) return Slope::kOne;
  const std::vector<bool> needed = graph.needed_by(by_score);
  for (Id id = 0; id <= by_score; ++id) {
    const Node& node = graph[id];
    if (!needed[static_cast<std::size_t>(id)] || node.op != Op::kVariable) continue;
    const auto variable = static_cast<Variable>(node.which);
    if (variable == Variable::kScore || variable == Variable::kRow || variable == Variable::kKey) return Slope::kAny;
  }
  return Slope::kUniform;
}

}  // namespace attend::expr
