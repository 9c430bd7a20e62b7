#include "expr/float32_bounds.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace attend::test {
namespace {

using expr::Node;
using expr::Op;
using expr::Type;

constexpr double kLargest = std::numeric_limits<float>::max(), kLeastNormal = std::numeric_limits<float>::min();
// Half a unit in the last place, relative to the value; rounding changes a value by at most this much.
constexpr double kHalfUnit = 0x1p-24;
constexpr Bounds kUndecided = {0, 0, false};

/// Largest difference between a float32 function and the exact function.
struct Error {
  double relative = 0, absolute = 0;
};

// CUDA's documentation promises 1 to 4 units in the last place for all of these functions. The header comments of
// score_math.cuh promise 2^-20 of the result, and an absolute error of 2^-22 for logarithms and tanh. The bounds here
// are twice as wide, because arguments are rounded too.
Error error_of(Op op, ScoreMath math) {
  if (op == Op::kPow || op == Op::kTan) return {.relative = 0x1p-20};
  const bool is_long = op == Op::kSin || op == Op::kCos || op == Op::kErf;
  if (math == ScoreMath::kExact || is_long) return {.relative = 0x1p-21};
  const bool is_near_one = op == Op::kLog || op == Op::kLog2 || op == Op::kLog1p || op == Op::kTanh;
  return {.relative = 0x1p-20, .absolute = is_near_one ? 0x1p-21 : 0};
}

bool have_same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

bool is_float32(double x) {
  return std::isnan(x) || static_cast<double>(static_cast<float>(x)) == x;
}

Bounds point(double x) {
  return {x, x};
}

Bounds hull(std::initializer_list<double> values) {
  const auto [low, high] = std::minmax(values);
  return {low, high};
}

/// Widens the bounds by an error. Also allows that values below the smallest normal number are flushed to 0. Values
/// that may exceed the float32 range are undecided.
Bounds widened(Bounds x, const Error& error) {
  if (!x.is_decided || std::isnan(x.low) || (x.is_point() && std::isinf(x.low))) return x;
  x.low -= error.relative * std::abs(x.low) + error.absolute + kLeastNormal;
  x.high += error.relative * std::abs(x.high) + error.absolute + kLeastNormal;
  return x.low < -kLargest || x.high > kLargest ? kUndecided : x;
}

/// Returns the float32 bounds of an operation that rounds correctly. A result that float32 can represent stays exact.
Bounds rounded(const Bounds& x) {
  return x.is_point() && is_float32(x.low) ? x : widened(x, {.relative = kHalfUnit});
}

/// Returns the bounds of a monotonic function over the bounds of its argument.
template <class F>
Bounds of_ends(const Bounds& x, const F& f) {
  return hull({f(x.low), f(x.high)});
}

/// Returns the bounds of a step function. The result is decided only if both ends of the argument's bounds are on the
/// same step.
template <class F>
Bounds of_steps(const Bounds& x, const F& f) {
  const double low = f(x.low), high = f(x.high);
  return have_same_bits(low, high) ? point(low) : kUndecided;
}

bool has_steps(Op op) {
  constexpr std::array kOps = {Op::kSign, Op::kFloor, Op::kCeil, Op::kRound, Op::kTrunc, Op::kToInt};
  return std::ranges::find(kOps, op) != kOps.end();
}

bool spans_zero(const Bounds& x) {
  return x.low <= 0 && x.high >= 0;
}

template <class F>
Bounds of_corners(const Bounds& a, const Bounds& b, const F& f) {
  return hull({f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)});
}

/// Returns the bounds of a monotonic function that is defined from `least` on and is NaN below.
template <class F>
Bounds of_ends_from(double least, const Bounds& x, const F& f) {
  if (x.high < least) return point(std::numeric_limits<double>::quiet_NaN());
  return x.low <= least ? kUndecided : of_ends(x, f);
}

/// Returns the bounds of a function whose slope is at most 1 and whose values are between -1 and 1.
template <class F>
Bounds of_middle(const Bounds& x, const F& f) {
  const double middle = x.low + (x.high - x.low) / 2, around = (x.high - x.low) / 2;
  if (around > 1) return kUndecided;
  return {std::max(f(middle) - around, -1.0), std::min(f(middle) + around, 1.0)};
}

Bounds tangent(const Bounds& x) {
  const auto branch = [](double at) { return std::floor(at / std::numbers::pi - 0.5); };
  return branch(x.low) == branch(x.high) ? of_ends(x, [](double at) { return std::tan(at); }) : kUndecided;
}

/// Returns the bounds of the exact function over all numbers within the bounds, which contain more than one number.
Bounds of_one(Op op, const Bounds& x) {
  const auto f = [op](double at) { return expr::apply(op, Type::kFloat, at, 0, 0); };
  if (has_steps(op)) return of_steps(x, f);
  switch (op) {
    case Op::kNegate:
    case Op::kExp:
    case Op::kExp2:
    case Op::kTanh:
    case Op::kSigmoid:
    case Op::kErf:
      return of_ends(x, f);
    case Op::kAbs:
      return spans_zero(x) ? Bounds{0, std::max(-x.low, x.high)} : of_ends(x, f);
    case Op::kLog:
    case Op::kLog2:
    case Op::kSqrt:
    case Op::kRsqrt:
      return of_ends_from(0, x, f);
    case Op::kLog1p:
      return of_ends_from(-1, x, f);
    case Op::kSin:
    case Op::kCos:
      return of_middle(x, f);
    case Op::kTan:
      return tangent(x);
    default:
      return kUndecided;
  }
}

/// Returns the bounds of a power. The base lies within bounds, and the exponent is a single number.
Bounds power_of(const Bounds& a, double exponent) {
  const auto f = [exponent](double base) { return std::pow(base, exponent); };
  if (a.low > 0) return of_ends(a, f);
  if (exponent == 0) return point(1);
  if (exponent != std::floor(exponent)) {
    return a.high < 0 ? point(std::numeric_limits<double>::quiet_NaN()) : kUndecided;
  }
  if (a.high < 0) return of_ends(a, f);
  if (exponent < 0) return kUndecided;
  return std::fmod(exponent, 2) == 0 ? Bounds{0, std::max(f(a.low), f(a.high))} : of_ends(a, f);
}

Bounds power(const Bounds& a, const Bounds& b) {
  if (b.is_point()) return power_of(a, b.low);
  if (a.low > 0) return of_corners(a, b, [](double x, double y) { return std::pow(x, y); });
  return a.is_point() && a.low == 0 && b.low > 0 ? point(0) : kUndecided;
}

Bounds quotient(const Bounds& a, const Bounds& b) {
  if (spans_zero(b)) return kUndecided;
  return of_corners(a, b, [](double x, double y) { return x / y; });
}

/// Returns the bounds of a - n b if every quotient a / b has the same floor n.
Bounds modulo(const Bounds& a, const Bounds& b) {
  const Bounds whole = quotient(a, b);
  const double n = std::floor(whole.low);
  if (!whole.is_decided || n != std::floor(whole.high)) return kUndecided;
  const Bounds times = of_ends(b, [n](double y) { return n * y; });
  const double around = kHalfUnit * std::max(std::abs(b.low), std::abs(b.high));
  return {a.low - times.high - around, a.high - times.low + around};
}

/// Returns the bounds of the exact operation over all operands within the given bounds, which are finite.
Bounds of_two(Op op, const Bounds& a, const Bounds& b) {
  switch (op) {
    case Op::kAdd:
      return {a.low + b.low, a.high + b.high};
    case Op::kSubtract:
      return {a.low - b.high, a.high - b.low};
    case Op::kMultiply:
      return of_corners(a, b, [](double x, double y) { return x * y; });
    case Op::kDivide:
      return quotient(a, b);
    case Op::kFloorDivide: {
      const Bounds whole = rounded(quotient(a, b));
      return whole.is_decided ? of_steps(whole, [](double x) { return std::floor(x); }) : whole;
    }
    case Op::kFloorMod:
      return modulo(a, b);
    case Op::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Op::kMax:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Op::kPow:
      return power(a, b);
    default:
      return kUndecided;
  }
}

Bounds compared(Op op, const Bounds& a, const Bounds& b) {
  const bool are_apart = a.high < b.low || b.high < a.low;
  switch (op) {
    case Op::kEqual:
      return are_apart ? point(0) : kUndecided;
    case Op::kNotEqual:
      return are_apart ? point(1) : kUndecided;
    case Op::kLess:
      return a.high < b.low ? point(1) : a.low >= b.high ? point(0) : kUndecided;
    default:
      return a.high <= b.low ? point(1) : a.low > b.high ? point(0) : kUndecided;
  }
}

bool is_comparison(Op op) {
  return op == Op::kEqual || op == Op::kNotEqual || op == Op::kLess || op == Op::kLessEqual;
}

bool is_binary(Op op) {
  constexpr std::array kOps = {Op::kAdd,      Op::kSubtract, Op::kMultiply, Op::kDivide, Op::kFloorDivide,
                               Op::kFloorMod, Op::kMin,      Op::kMax,      Op::kPow};
  return is_comparison(op) || std::ranges::find(kOps, op) != kOps.end();
}

/// Widens the exact result by the rounding error of the operation.
Bounds with_error(Op op, const Bounds& exact, const Bounds& b, ScoreMath math) {
  if (has_steps(op)) return exact;
  switch (op) {
    case Op::kNegate:
    case Op::kAbs:
    case Op::kFloorDivide:
    case Op::kMin:
    case Op::kMax:
      return exact;
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kFloorMod:
      return rounded(exact);
    case Op::kDivide:
      if (math == ScoreMath::kExact || std::isnan(b.low) || std::isinf(b.low) || (b.low == 0 && b.high == 0)) {
        return rounded(exact);
      }
      // Beyond these limits, the reciprocal in the fast division is not a normal number.
      if (std::min(std::abs(b.low), std::abs(b.high)) < 0x1p-125) return kUndecided;
      if (std::max(std::abs(b.low), std::abs(b.high)) > 0x1p125) return kUndecided;
      // If float32 can represent the quotient, the division is exact.
      return exact.is_point() && is_float32(exact.low) ? exact : widened(exact, {.relative = 0x1p-20});
    case Op::kSqrt:
      if (math == ScoreMath::kExact) return rounded(exact);
      break;
    default:
      break;
  }
  return widened(exact, error_of(op, math));
}

/// Handles operands that may be infinite or NaN. The result is decided if it is the same at all corners of the bounds.
Bounds of_infinities(Op op, const Bounds& a, const Bounds& b) {
  // x^0 is 1 even for NaN, so the corners do not show all results
  if (op == Op::kPow && !b.is_point() && spans_zero(b)) return kUndecided;
  const auto f = [op](double x, double y) { return expr::apply(op, Type::kFloat, x, y, 0); };
  const double first = f(a.low, b.low);
  const bool are_same = have_same_bits(first, f(a.low, b.high)) && have_same_bits(first, f(a.high, b.low)) &&
                        have_same_bits(first, f(a.high, b.high));
  return are_same && is_float32(first) ? point(first) : kUndecided;
}

Bounds of_floats(Op op, const Bounds& a, const Bounds& b, ScoreMath math) {
  const bool are_finite = std::isfinite(a.low) && std::isfinite(b.low);
  const bool are_points = a.is_point() && b.is_point();
  if (!are_finite && !are_points) return of_infinities(op, a, b);
  // The quotient is rounded before its floor is taken.
  const bool has_quotient = op == Op::kFloorDivide && are_finite && b.low != 0;
  if (are_points && !has_quotient) {
    const double exact = expr::apply(op, Type::kFloat, a.low, b.low, 0);
    return is_comparison(op) ? point(exact) : with_error(op, point(exact), b, math);
  }
  if (is_comparison(op)) return compared(op, a, b);
  return with_error(op, is_binary(op) ? of_two(op, a, b) : of_one(op, a), b, math);
}

}  // namespace

bool Bounds::is_point() const {
  return is_decided && have_same_bits(low, high);
}

bool Bounds::contains(double x) const {
  return !is_decided || (low <= x && x <= high) || (std::isnan(low) && std::isnan(x));
}

Bounds bounds_of_operation(Op op, Type operand_type, const Bounds& a, const Bounds& b, ScoreMath math) {
  if (op == Op::kAnd || op == Op::kOr) {
    const bool deciding = op == Op::kOr;
    for (const Bounds& x : {a, b}) {
      if (operand_type == Type::kBool && x.is_decided && (x.low != 0) == deciding) return point(deciding ? 1 : 0);
    }
  }
  if (!a.is_decided || !b.is_decided) return kUndecided;
  if (operand_type == Type::kFloat) return of_floats(op, a, b, math);
  const double exact = expr::apply(op, operand_type, a.low, b.low, 0);
  return op == Op::kToFloat ? rounded(point(exact)) : point(exact);
}

Float32Bounds::Float32Bounds(const expr::Graph& graph, std::vector<expr::Id> results, expr::Load load, ScoreMath math)
    : graph_(graph),
      results_(std::move(results)),
      load_(std::move(load)),
      math_(math),
      needed_(graph.needed_by(results_)),
      bounds_(graph.size()),
      of_results_(results_.size()) {}

const Bounds& Float32Bounds::arg(const Node& node, std::size_t n) const {
  static const Bounds none;
  return node.args[n] == expr::kNone ? none : bounds_[static_cast<std::size_t>(node.args[n])];
}

Bounds Float32Bounds::of_load(const Node& node) const {
  const std::vector<std::int64_t>& shape = graph_.captures()[static_cast<std::size_t>(node.which)].shape;
  std::array<std::int64_t, expr::kMostSubscripts> subscripts = {};
  for (std::size_t n = 0; n < shape.size(); ++n) {
    if (!arg(node, n).is_decided) return kUndecided;
    subscripts[n] = std::clamp<std::int64_t>(static_cast<std::int64_t>(arg(node, n).low), 0, shape[n] - 1);
  }
  return rounded(point(load_(node.which, {subscripts.data(), shape.size()})));
}

Bounds Float32Bounds::of_node(const Node& node, const expr::Point& at) const {
  switch (node.op) {
    case Op::kConstant:
      return node.type == Type::kFloat ? rounded(point(node.value)) : point(node.value);
    case Op::kVariable:
      return rounded(point(at[static_cast<std::size_t>(node.which)]));
    case Op::kLoad:
      return of_load(node);
    case Op::kSelect: {
      const Bounds &a = arg(node, 1), &b = arg(node, 2);
      if (arg(node, 0).is_decided) return arg(node, 0).low != 0 ? a : b;
      return a.is_point() && b.is_point() && have_same_bits(a.low, b.low) ? a : kUndecided;
    }
    case Op::kMultiply:
      if (node.type == Type::kFloat && node.args[0] == node.args[1] && arg(node, 0).is_decided &&
          !arg(node, 0).is_point()) {
        return rounded(power_of(arg(node, 0), 2));  // both operands are the same number, so the square is not negative
      }
      break;
    default:
      break;
  }
  return bounds_of_operation(node.op, graph_.operand_type(node), arg(node, 0), arg(node, 1), math_);
}

std::span<const Bounds> Float32Bounds::at(const expr::Point& at) {
  for (std::size_t n = 0; n < needed_.size(); ++n) {
    if (needed_[n]) bounds_[n] = of_node(graph_[static_cast<expr::Id>(n)], at);
  }
  for (std::size_t n = 0; n < results_.size(); ++n) of_results_[n] = bounds_[static_cast<std::size_t>(results_[n])];
  return of_results_;
}

}  // namespace attend::test
