#include "expr/bounds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace attend::expr {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastInt = std::numeric_limits<std::int32_t>::min();
constexpr double kMostInt = std::numeric_limits<std::int32_t>::max();
constexpr Interval kAnyFloat = {-kInfinity, kInfinity, true};
constexpr Interval kAnyInt = {kLeastInt, kMostInt};
constexpr Interval kAnyBool = {0, 1};

/// Widens an interval by the rounding errors of float32. In kernels, every function has a relative error of at most
/// 2^-18.
Interval widened(const Interval& x) {
  const auto margin = [](double end) { return std::isinf(end) ? 0.0 : std::abs(end) * 0x1p-18 + 0x1p-126; };
  constexpr double kMostFloat = std::numeric_limits<float>::max();
  Interval wide = {x.low - margin(x.low), x.high + margin(x.high), x.has_nan};
  if (wide.low < -kMostFloat) wide.low = -kInfinity;
  if (wide.high > kMostFloat) wide.high = kInfinity;
  return wide;
}

Interval of_int(double low, double high) {
  return low < kLeastInt || high > kMostInt ? kAnyInt : Interval{low, high};
}

bool has_infinity(const Interval& x) {
  return std::isinf(x.low) || std::isinf(x.high);
}

/// Returns the smallest and the largest value of an operation that is monotone in each operand. They occur at corners
/// of the two intervals.
Interval of_corners(Op op, const Interval& a, const Interval& b) {
  Interval all = {kInfinity, -kInfinity};
  for (const double x : {a.low, a.high}) {
    for (const double y : {b.low, b.high}) {
      // The operation is applied to floats, because integer results could wrap.
      const double value = apply(op, Type::kFloat, x, y, 0);
      if (std::isnan(value)) return kAnyFloat;
      all = all.hull(Interval::of(value));
    }
  }
  return all;
}

Interval of_truths(Op op, const Interval& a, const Interval& b) {
  if (op == Op::kAnd) return {std::min(a.low, b.low), std::min(a.high, b.high)};
  if (op == Op::kOr) return {std::max(a.low, b.low), std::max(a.high, b.high)};
  if (op == Op::kNot) return {1 - a.high, 1 - a.low};
  return a.is_one() && b.is_one() ? Interval::of(a.low != b.low) : kAnyBool;
}

Interval of_remainder(const Interval& a, const Interval& b) {
  if (b.is_one() && b.low > 0 && std::floor(a.low / b.low) == std::floor(a.high / b.low)) {
    const double blocks = std::floor(a.low / b.low) * b.low;
    return {a.low - blocks, a.high - blocks};
  }
  return {std::min(b.low + 1, 0.0), std::max(b.high - 1, 0.0)};
}

/// Returns bounds for a bit operation on non-negative integers. The result has no bit above the highest bit of the
/// larger operand.
Interval of_bits(Op op, const Interval& a, const Interval& b) {
  if (a.low < 0 || b.low < 0) return kAnyInt;
  if (op == Op::kAnd) return {0, std::min(a.high, b.high)};
  const double above = std::exp2(std::floor(std::log2(std::max({a.high, b.high, 1.0}))) + 1);
  return {op == Op::kOr ? std::max(a.low, b.low) : 0, std::min(above - 1, kMostInt)};
}

Interval of_shift(Op op, const Interval& a, const Interval& b) {
  if (!b.is_one() || b.low < 0 || b.low > 30) {
    return op == Op::kShiftRight && a.low >= 0 ? Interval{0, a.high} : kAnyInt;
  }
  const double factor = std::exp2(b.low);
  if (op == Op::kShiftLeft) return of_int(a.low * factor, a.high * factor);
  return {std::floor(a.low / factor), std::floor(a.high / factor)};
}

Interval of_ints(Op op, const Interval& a, const Interval& b) {
  switch (op) {
    case Op::kNegate:
      return of_int(-a.high, -a.low);
    case Op::kAbs:
      if (a.low >= 0) return a;
      return of_int(a.high <= 0 ? -a.high : 0, std::max(-a.low, a.high));
    case Op::kSign:
      return {apply(op, Type::kInt, a.low, 0, 0), apply(op, Type::kInt, a.high, 0, 0)};
    case Op::kNot:
      return {-a.high - 1, -a.low - 1};
    case Op::kAdd:
      return of_int(a.low + b.low, a.high + b.high);
    case Op::kSubtract:
      return of_int(a.low - b.high, a.high - b.low);
    case Op::kMultiply: {
      const Interval product = of_corners(op, a, b);
      return of_int(product.low, product.high);
    }
    case Op::kFloorDivide: {
      if (b.low > 0 || b.high < 0) {
        const Interval quotient = of_corners(op, a, b);
        return of_int(quotient.low, quotient.high);
      }
      const double most = std::max(std::abs(a.low), std::abs(a.high));
      return of_int(-most, most);
    }
    case Op::kFloorMod:
      return of_remainder(a, b);
    case Op::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Op::kMax:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Op::kShiftLeft:
    case Op::kShiftRight:
      return of_shift(op, a, b);
    default:
      return of_bits(op, a, b);
  }
}

/// Returns whether the operation increases with its operand, in its entire domain.
bool grows(Op op) {
  switch (op) {
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kExp:
    case Op::kExp2:
    case Op::kLog:
    case Op::kLog2:
    case Op::kLog1p:
    case Op::kSqrt:
    case Op::kTanh:
    case Op::kSigmoid:
    case Op::kErf:
      return true;
    default:
      return false;
  }
}

Interval of_one_float(Op op, const Interval& a) {
  if (op == Op::kNegate) return {-a.high, -a.low, a.has_nan};
  if (op == Op::kAbs) {
    return {a.low >= 0 ? a.low : a.high <= 0 ? -a.high : 0, std::max(-a.low, a.high), a.has_nan};
  }
  if (op == Op::kSin || op == Op::kCos) return {-1, 1, a.has_nan || has_infinity(a)};
  if (!grows(op)) return kAnyFloat;
  const double low = apply(op, Type::kFloat, a.low, 0, 0), high = apply(op, Type::kFloat, a.high, 0, 0);
  if (std::isnan(high)) return kAnyFloat;
  return {std::isnan(low) ? -kInfinity : low, high, a.has_nan || std::isnan(low)};
}

Interval of_floats(Op op, const Interval& a, const Interval& b) {
  const bool has_nan = a.has_nan || b.has_nan;
  switch (op) {
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply: {
      Interval all = of_corners(op, a, b);
      all.has_nan = all.has_nan || has_nan || (has_infinity(a) || has_infinity(b));
      return all;
    }
    case Op::kDivide: {
      if (b.low <= 0 && b.high >= 0) return kAnyFloat;
      Interval all = of_corners(op, a, b);
      all.has_nan = all.has_nan || has_nan || has_infinity(a);
      return all;
    }
    case Op::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high), has_nan};
    case Op::kMax:
      return {std::max(a.low, b.low), std::max(a.high, b.high), has_nan};
    case Op::kPow:
    case Op::kFloorDivide:
    case Op::kFloorMod:
      return kAnyFloat;
    default:
      return of_one_float(op, a);
  }
}

Interval of_comparison(Op op, const Interval& a, const Interval& b) {
  const bool has_nan = a.has_nan || b.has_nan;
  const auto between = [](bool never, bool always) { return Interval{always ? 1.0 : 0.0, never ? 0.0 : 1.0}; };
  switch (op) {
    case Op::kLess:
      return between(a.low >= b.high, a.high < b.low && !has_nan);
    case Op::kLessEqual:
      return between(a.low > b.high, a.high <= b.low && !has_nan);
    case Op::kEqual:
      return between(a.high < b.low || b.high < a.low, a.is_one() && b.is_one() && a.low == b.low);
    default: {
      const Interval equal = of_comparison(Op::kEqual, a, b);
      return {1 - equal.high, 1 - equal.low};
    }
  }
}

Interval of_conversion(Op op, const Interval& a) {
  if (op == Op::kToFloat) return std::max(-a.low, a.high) < 0x1p24 ? a : widened(a);
  Interval whole = {apply(op, Type::kFloat, a.low, 0, 0), apply(op, Type::kFloat, a.high, 0, 0)};
  if (a.has_nan) whole = whole.hull(Interval::of(0));
  return whole;
}

Interval of_node(Op op, Type type, const Interval& a, const Interval& b, const Interval& c) {
  switch (op) {
    case Op::kEqual:
    case Op::kNotEqual:
    case Op::kLess:
    case Op::kLessEqual:
      return of_comparison(op, a, b);
    case Op::kToInt:
    case Op::kToFloat:
      return of_conversion(op, a);
    case Op::kSelect:
      return a.is_one() ? (a.low == 0 ? c : b) : b.hull(c);
    default:
      break;
  }
  if (type == Type::kBool) return of_truths(op, a, b);
  if (type == Type::kInt) return of_ints(op, a, b);
  return widened(of_floats(op, a, b));
}

}  // namespace

Interval bounds_of(const Graph& graph, Id root, const Ranges& ranges, const LoadBounds& loads) {
  const std::vector<bool> needed = graph.needed_by(root);
  std::vector<Interval> known(needed.size());
  for (Id id = 0; id <= root; ++id) {
    if (!needed[static_cast<std::size_t>(id)]) continue;
    const Node& node = graph[id];
    const auto arg = [&](std::size_t n) {
      return node.args[n] == kNone ? Interval::of(0) : known[static_cast<std::size_t>(node.args[n])];
    };
    Interval& own = known[static_cast<std::size_t>(id)];
    if (node.op == Op::kConstant) {
      own = node.type == Type::kFloat ? widened(Interval::of(node.value)) : Interval::of(node.value);
    } else if (node.op == Op::kVariable) {
      own = ranges[static_cast<std::size_t>(node.which)];
    } else if (node.op == Op::kLoad) {
      const std::vector<std::int64_t>& shape = graph.captures()[static_cast<std::size_t>(node.which)].shape;
      std::array<Interval, kMostSubscripts> subscripts;
      for (std::size_t n = 0; n < shape.size(); ++n) {
        const auto last = static_cast<double>(shape[n] - 1);
        subscripts[n] = {std::clamp(arg(n).low, 0.0, last), std::clamp(arg(n).high, 0.0, last)};
      }
      own = loads(node.which, {subscripts.data(), shape.size()});
    } else {
      own = of_node(node.op, graph.operand_type(node), arg(0), arg(1), arg(2));
    }
  }
  return known[static_cast<std::size_t>(root)];
}

}  // namespace attend::expr
