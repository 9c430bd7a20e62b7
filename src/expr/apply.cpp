// Operations on numbers. All numbers are stored as doubles. A bool is 0 or 1, and an integer is a whole number in the
// range of 32 bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "expr/graph.hpp"

namespace attend::expr {
namespace {

/// Returns the 32-bit integer that equals x modulo 2^32.
double wrapped(std::int64_t x) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(x)));
}

double to_int(double x) {
  using Limits = std::numeric_limits<std::int32_t>;
  if (std::isnan(x)) return 0;
  return std::clamp(std::trunc(x), static_cast<double>(Limits::min()), static_cast<double>(Limits::max())) + 0.0;
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

double of_ints(Op op, double x, double y) {
  const auto a = static_cast<std::int64_t>(x), b = static_cast<std::int64_t>(y);
  switch (op) {
    case Op::kNegate:
      return wrapped(-a);
    case Op::kAbs:
      return wrapped(a < 0 ? -a : a);
    case Op::kSign:
      return (a > 0) - (a < 0);
    case Op::kNot:
      return wrapped(~a);
    case Op::kAdd:
      return wrapped(a + b);
    case Op::kSubtract:
      return wrapped(a - b);
    case Op::kMultiply:
      return wrapped(a * b);
    case Op::kFloorDivide:
      return wrapped(floor_divided(a, b));
    case Op::kFloorMod:
      return b == 0 ? 0 : wrapped(a - b * floor_divided(a, b));
    case Op::kMin:
      return std::min(x, y);
    case Op::kMax:
      return std::max(x, y);
    case Op::kAnd:
      return wrapped(a & b);
    case Op::kOr:
      return wrapped(a | b);
    case Op::kXor:
      return wrapped(a ^ b);
    case Op::kShiftLeft:
      return wrapped(static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << (b & 31)));
    case Op::kShiftRight:
      return wrapped(a >> (b & 31));
    default:
      return 0;
  }
}

double of_one_float(Op op, double x) {
  switch (op) {
    case Op::kNegate:
      return -x;
    case Op::kAbs:
      return std::abs(x);
    case Op::kSign:
      return std::isnan(x) ? x : (x > 0) - (x < 0);
    case Op::kFloor:
      return std::floor(x);
    case Op::kCeil:
      return std::ceil(x);
    case Op::kRound:
      return std::nearbyint(x);
    case Op::kTrunc:
      return std::trunc(x);
    case Op::kExp:
      return std::exp(x);
    case Op::kExp2:
      return std::exp2(x);
    case Op::kLog:
      return std::log(x);
    case Op::kLog2:
      return std::log2(x);
    case Op::kLog1p:
      return std::log1p(x);
    case Op::kSqrt:
      return std::sqrt(x);
    case Op::kRsqrt:
      return 1 / std::sqrt(x);
    case Op::kSin:
      return std::sin(x);
    case Op::kCos:
      return std::cos(x);
    case Op::kTan:
      return std::tan(x);
    case Op::kTanh:
      return std::tanh(x);
    case Op::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Op::kErf:
      return std::erf(x);
    default:
      return 0;
  }
}

double of_floats(Op op, double x, double y) {
  const bool has_nan = std::isnan(x) || std::isnan(y);
  switch (op) {
    case Op::kAdd:
      return x + y;
    case Op::kSubtract:
      return x - y;
    case Op::kMultiply:
      return x * y;
    case Op::kDivide:
      return x / y;
    case Op::kFloorDivide:
      return std::floor(x / y);
    case Op::kFloorMod: {
      const double rest = std::fmod(x, y);  // fmod has no rounding error
      return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
    }
    case Op::kPow:
      return std::pow(x, y);
    case Op::kMin:
      return has_nan ? x + y : std::min(x, y);
    case Op::kMax:
      return has_nan ? x + y : std::max(x, y);
    default:
      return of_one_float(op, x);
  }
}

}  // namespace

double apply(Op op, Type type, double a, double b, double c) {
  switch (op) {
    case Op::kEqual:
      return a == b;
    case Op::kNotEqual:
      return a != b;
    case Op::kLess:
      return a < b;
    case Op::kLessEqual:
      return a <= b;
    case Op::kToInt:
      return to_int(a);
    case Op::kToFloat:
      return a;
    case Op::kSelect:
      return a != 0 ? b : c;
    default:
      break;
  }
  if (type == Type::kFloat) return of_floats(op, a, b);
  if (type == Type::kBool && op == Op::kNot) return a == 0;
  return of_ints(op, a, b);
}

}  // namespace attend::expr
