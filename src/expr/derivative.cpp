// Source: Griewank & Walther, Evaluating Derivatives (2008), section 3.2, the incremental reverse mode
#include "expr/derivative.hpp"

#include <cmath>
#include <numbers>

namespace attend::expr {
namespace {

class Reverse {
 public:
  Reverse(Graph& graph, Id result)
      : g_(graph), adjoints_(static_cast<std::size_t>(result) + 1, kNone), chosen_(adjoints_.size(), false) {
    for (Id id = 0; id <= result; ++id) depends_.push_back(depends(graph[id]));
    adjoints_.back() = g_.number(1);
    for (Id id = result; id >= 0; --id) {
      if (adjoint(id) == kNone || !depends_[place(id)]) continue;
      d_ = adjoint(id);
      is_chosen_ = chosen_[place(id)];
      pass_on(id);
    }
  }

  [[nodiscard]] Id adjoint(Id id) const { return adjoints_[place(id)]; }

 private:
  static std::size_t place(Id id) { return static_cast<std::size_t>(id); }

  /// Returns whether the node depends on the score or on a loaded float.
  [[nodiscard]] bool depends(const Node& node) const {
    if (node.type != Type::kFloat || node.op == Op::kToFloat) return false;
    if (node.op == Op::kVariable || node.op == Op::kLoad) return true;
    bool any = false;
    for (std::size_t n = 0; n < node.num_args(); ++n) any = any || depends_[place(node.args[n])];
    return any;
  }

  void add(Id to, Id derivative) {
    if (!depends_[place(to)] || g_.is_constant(derivative, 0)) return;
    Id& sum = adjoints_[place(to)];
    sum = sum == kNone ? derivative : g_.make(Op::kAdd, sum, derivative);
    chosen_[place(to)] = chosen_[place(to)] || is_chosen_;
  }

  /// Adds f(d_) to the adjoint of `to`. If is_chosen_ is true, d_ may be 0 because min, max or ?: chose another
  /// operand. The generated code then adds 0 whenever d_ is 0. Otherwise an infinite or NaN operand that was not chosen
  /// would give 0 * NaN, which is NaN.
  template <class F>
  void add_of(Id to, const F& f) {
    if (!depends_[place(to)]) return;
    const Id derivative = f(d_);
    if (!is_chosen_) return add(to, derivative);
    add(to, where(g_.make(Op::kEqual, d_, number(0)), number(0), derivative));
  }

  /// Adds `part` to the adjoint of `to`, an operand of min, max or ?:. `part` is d_ or a fraction of d_ if the operand
  /// is chosen, and 0 otherwise.
  void add_if_chosen(Id to, Id part) {
    is_chosen_ = true;
    add(to, part);
  }

  Id plus(Id a, Id b) { return g_.make(Op::kAdd, a, b); }
  Id minus(Id a, Id b) { return g_.make(Op::kSubtract, a, b); }
  Id times(Id a, Id b) { return g_.make(Op::kMultiply, a, b); }
  /// Returns a / b. If a is a constant times x, and b is a constant, divides the two constants first. For example, the
  /// derivative of cap * tanh(score / cap) then has no constant factor, because cap / cap is 1.
  Id over(Id a, Id b) {
    const Node product = g_[a];
    for (std::size_t n = 0; n < 2 && product.op == Op::kMultiply && g_.is_constant(b); ++n) {
      if (!g_.is_constant(product.args[n])) continue;
      const double quotient = g_[product.args[n]].value / g_[b].value;
      if (std::isnormal(quotient)) return times(number(quotient), product.args[1 - n]);
    }
    return g_.make(Op::kDivide, a, b);
  }
  Id negative(Id a) { return g_.make(Op::kNegate, a); }
  Id number(double x) { return g_.number(x); }
  Id where(Id condition, Id a, Id b) { return g_.make(Op::kSelect, condition, a, b); }

  /// For each operand of y, adds the derivative of y with respect to the operand, times d_, to the operand's adjoint.
  void pass_on(Id y) {
    const Node node = g_[y];
    const Id a = node.args[0], b = node.args[1];
    switch (node.op) {
      case Op::kAdd:
        return add(a, d_), add(b, d_);
      case Op::kSubtract:
        return add(a, d_), add(b, negative(d_));
      case Op::kMultiply:
        return add_of(a, [&](Id d) { return times(d, b); }), add_of(b, [&](Id d) { return times(d, a); });
      case Op::kDivide:
        add_of(a, [&](Id d) { return over(d, b); });
        return add_of(b, [&](Id d) { return negative(over(times(d, y), b)); });
      case Op::kFloorMod:
        add(a, d_);
        return add_of(b, [&](Id d) { return negative(times(d, g_.make(Op::kFloor, over(a, b)))); });
      case Op::kMin:
        return add_if_chosen(a, share(a, b)), add_if_chosen(b, share(b, a));
      case Op::kMax:
        return add_if_chosen(a, share(b, a)), add_if_chosen(b, share(a, b));
      case Op::kPow:
        return pass_to_power(y, a, b);
      case Op::kSelect:
        return add_if_chosen(b, where(a, d_, number(0))), add_if_chosen(node.args[2], where(a, number(0), d_));
      case Op::kVariable:
      case Op::kLoad:
        return;
      default:
        return add_of(a, [&](Id d) { return of_one(node.op, y, a, d); });
    }
  }

  /// Returns d times the derivative of y with respect to its only operand a.
  Id of_one(Op op, Id y, Id a, Id d) {
    switch (op) {
      case Op::kNegate:
        return negative(d);
      case Op::kAbs:
        return times(d, g_.make(Op::kSign, a));
      case Op::kExp:
        return times(d, y);
      case Op::kExp2:
        return times(d, times(y, number(std::numbers::ln2)));
      case Op::kLog:
        return over(d, a);
      case Op::kLog2:
        return over(d, times(a, number(std::numbers::ln2)));
      case Op::kLog1p:
        return over(d, plus(a, number(1)));
      case Op::kSqrt:
        return over(d, times(number(2), y));
      case Op::kRsqrt:
        return times(d, times(number(-0.5), times(y, times(y, y))));
      case Op::kSin:
        return times(d, g_.make(Op::kCos, a));
      case Op::kCos:
        return negative(times(d, g_.make(Op::kSin, a)));
      case Op::kTan:
        return times(d, plus(times(y, y), number(1)));
      case Op::kTanh:
        return times(d, minus(number(1), times(y, y)));
      case Op::kSigmoid:
        return times(d, times(y, minus(number(1), y)));
      case Op::kErf:
        return times(d, times(number(2 * std::numbers::inv_sqrtpi), g_.make(Op::kExp, negative(times(a, a)))));
      default:
        return number(0);  // the derivative of rounding and of sign is 0, because they are constant between their steps
    }
  }

  /// Returns d_ if `smaller` is less than `larger`, half of d_ if they are equal, and otherwise 0.
  Id share(Id smaller, Id larger) {
    const Id of_unequal = where(g_.make(Op::kLess, smaller, larger), d_, number(0));
    return where(g_.make(Op::kEqual, smaller, larger), times(d_, number(0.5)), of_unequal);
  }

  void pass_to_power(Id y, Id a, Id b) {
    const Id zero = number(0);
    add_of(a, [&](Id d) {
      const Id slope = times(b, g_.make(Op::kPow, a, minus(b, number(1))));
      return where(g_.make(Op::kEqual, b, zero), zero, times(d, slope));
    });
    add_of(b, [&](Id d) {
      const Id at_zero = g_.make(Op::kAnd, g_.make(Op::kEqual, a, zero), g_.make(Op::kLessEqual, zero, b));
      return where(at_zero, zero, times(d, times(y, g_.make(Op::kLog, a))));
    });
  }

  Graph& g_;
  std::vector<Id> adjoints_;
  // For each node, true if the node's adjoint may be 0 because min, max or ?: chose another operand.
  std::vector<bool> chosen_;
  std::vector<bool> depends_;
  Id d_ = kNone;            // adjoint of the current node
  bool is_chosen_ = false;  // value of `chosen_` for the current node
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
