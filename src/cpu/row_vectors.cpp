#include "cpu/row_vectors.hpp"

// Compiled once per SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/row_vectors.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <cmath>

#include "kernels/attention/score_math.cuh"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using expr::Instruction;
using expr::Op;
using expr::Type;

constexpr hn::CappedTag<float, 16> kFloats;
constexpr hn::RebindToSigned<decltype(kFloats)> kInts;
using Floats = hn::Vec<decltype(kFloats)>;
using Ints = hn::Vec<decltype(kInts)>;

template <class F>
void each_float(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; n += static_cast<int>(hn::Lanes(kFloats))) hn::StoreU(f(n), kFloats, v.out_f + n);
}
template <class F>
void each_int(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; n += static_cast<int>(hn::Lanes(kInts))) hn::StoreU(f(n), kInts, v.out_i + n);
}
/// Evaluates one element at a time.
template <class F>
void each_int_alone(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; ++n) v.out_i[n] = f(n);
}
template <class F>
void one_by_one(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; ++n) v.out_f[n] = f(n);
}

/// Evaluates lanes with a value in [low, high] by `vector`. Evaluates all other lanes (NaN, infinities, large numbers)
/// by `scalar`. In the other lanes, `vector` receives the value `inside`. The result of a lane therefore does not
/// depend on the neighbouring lanes.
template <class V, class S>
void in_range(const RowVectors& v, float low, float high, float inside, V vector, S scalar) {
  const Floats least = hn::Set(kFloats, low), most = hn::Set(kFloats, high);
  for (int n = 0; n < v.count; n += static_cast<int>(hn::Lanes(kFloats))) {
    const Floats x = hn::LoadU(kFloats, v.f[0] + n);
    const auto is_inside = hn::And(hn::Ge(x, least), hn::Le(x, most));
    const Floats result = vector(hn::IfThenElse(is_inside, x, hn::Set(kFloats, inside)));
    if (hn::AllTrue(kFloats, is_inside)) {
      hn::StoreU(result, kFloats, v.out_f + n);
      continue;
    }
    float inputs[hn::MaxLanes(kFloats)], results[hn::MaxLanes(kFloats)];  // copies, because out_f may overlap x
    hn::StoreU(x, kFloats, inputs);
    hn::StoreU(result, kFloats, results);
    for (int lane = 0; lane < static_cast<int>(hn::Lanes(kFloats)); ++lane) {
      const float y = inputs[lane];
      v.out_f[n + lane] = y >= low && y <= high ? results[lane] : scalar(y);
    }
  }
}

/// Computes functions such as exp and tanh with an error of at most 4 units in the last place (score_function.hpp).
void approximated(Op op, const RowVectors& v) {
  constexpr float kLargest = 3e38F, kSmallest = 1e-37F;
  const Floats one = hn::Set(kFloats, 1.0F);
  switch (op) {
    case Op::kExp:
      return in_range(
          v, -80, 80, 0, [](Floats y) { return hn::Exp(kFloats, y); }, [](float y) { return std::exp(y); });
    case Op::kLog:
      return in_range(
          v, kSmallest, kLargest, 1, [](Floats y) { return hn::Log(kFloats, y); }, [](float y) { return std::log(y); });
    case Op::kLog2:
      return in_range(
          v, kSmallest, kLargest, 1, [](Floats y) { return hn::Log2(kFloats, y); },
          [](float y) { return std::log2(y); });
    case Op::kLog1p:
      return in_range(
          v, 0, kLargest, 0, [](Floats y) { return hn::Log1p(kFloats, y); }, [](float y) { return std::log1p(y); });
    case Op::kSin:
      return in_range(
          v, -30000, 30000, 0,
          [](Floats y) { return hn::IfThenElse(hn::Eq(y, hn::Zero(kFloats)), y, hn::Sin(kFloats, y)); },
          [](float y) { return std::sin(y); });
    case Op::kCos:
      return in_range(
          v, -30000, 30000, 0, [](Floats y) { return hn::Cos(kFloats, y); }, [](float y) { return std::cos(y); });
    case Op::kTanh:
      return in_range(
          v, -kLargest, kLargest, 0, [](Floats y) { return hn::Tanh(kFloats, y); },
          [](float y) { return std::tanh(y); });
    case Op::kSigmoid:
      return in_range(
          v, -80, 80, 0, [&](Floats y) { return hn::Div(one, hn::Add(one, hn::Exp(kFloats, hn::Neg(y)))); },
          [](float y) { return score_math::sigmoid(y); });
    case Op::kExp2:
      return one_by_one(v, [&](int n) { return std::exp2(v.f[0][n]); });
    case Op::kTan:
      return one_by_one(v, [&](int n) { return std::tan(v.f[0][n]); });
    case Op::kErf:
      return one_by_one(v, [&](int n) { return std::erf(v.f[0][n]); });
    default:
      return;
  }
}

void of_one_float(Op op, const RowVectors& v) {
  const auto x = [&](int n) { return hn::LoadU(kFloats, v.f[0] + n); };
  const Floats one = hn::Set(kFloats, 1.0F), zero = hn::Zero(kFloats);
  switch (op) {
    case Op::kNegate:
      return each_float(v, [&](int n) { return hn::Neg(x(n)); });
    case Op::kAbs:
      return each_float(v, [&](int n) { return hn::Abs(x(n)); });
    case Op::kSign:
      return each_float(v, [&](int n) {
        const Floats y = x(n);
        const Floats sign = hn::IfThenElse(hn::Gt(y, zero), one, hn::IfThenElse(hn::Lt(y, zero), hn::Neg(one), zero));
        return hn::IfThenElse(hn::IsNaN(y), y, sign);
      });
    case Op::kFloor:
      return each_float(v, [&](int n) { return hn::Floor(x(n)); });
    case Op::kCeil:
      return each_float(v, [&](int n) { return hn::Ceil(x(n)); });
    case Op::kRound:
      return each_float(v, [&](int n) { return hn::Round(x(n)); });
    case Op::kTrunc:
      return each_float(v, [&](int n) { return hn::Trunc(x(n)); });
    case Op::kSqrt:
      return each_float(v, [&](int n) { return hn::Sqrt(x(n)); });
    case Op::kRsqrt:
      return each_float(v, [&](int n) { return hn::Div(one, hn::Sqrt(x(n))); });
    default:
      return approximated(op, v);
  }
}

void of_floats(Op op, const RowVectors& v) {
  const auto a = [&](int n) { return hn::LoadU(kFloats, v.f[0] + n); };
  const auto b = [&](int n) { return hn::LoadU(kFloats, v.f[1] + n); };
  // The result is NaN if either operand is NaN.
  const auto chosen = [&](int n, auto takes_b) {
    const Floats x = a(n), y = b(n);
    return hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::IsNaN(y)), hn::Add(x, y), hn::IfThenElse(takes_b(x, y), y, x));
  };
  switch (op) {
    case Op::kAdd:
      return each_float(v, [&](int n) { return hn::Add(a(n), b(n)); });
    case Op::kSubtract:
      return each_float(v, [&](int n) { return hn::Sub(a(n), b(n)); });
    case Op::kMultiply:
      return each_float(v, [&](int n) { return hn::Mul(a(n), b(n)); });
    case Op::kDivide:
      return each_float(v, [&](int n) { return hn::Div(a(n), b(n)); });
    case Op::kFloorDivide:
      return each_float(v, [&](int n) { return hn::Floor(hn::Div(a(n), b(n))); });
    case Op::kMin:
      return each_float(v, [&](int n) { return chosen(n, [](Floats x, Floats y) { return hn::Lt(y, x); }); });
    case Op::kMax:
      return each_float(v, [&](int n) { return chosen(n, [](Floats x, Floats y) { return hn::Lt(x, y); }); });
    case Op::kFloorMod:
      return one_by_one(v, [&](int n) { return score_math::floor_mod(v.f[0][n], v.f[1][n]); });
    case Op::kPow:
      return one_by_one(v, [&](int n) { return std::pow(v.f[0][n], v.f[1][n]); });
    default:
      return of_one_float(op, v);
  }
}

void of_ints(const Instruction& made, const RowVectors& v) {
  const auto a = [&](int n) { return hn::LoadU(kInts, v.i[0] + n); };
  const auto b = [&](int n) { return hn::LoadU(kInts, v.i[1] + n); };
  switch (made.op) {
    case Op::kNegate:
      return each_int(v, [&](int n) { return hn::Sub(hn::Zero(kInts), a(n)); });
    case Op::kAbs:  // The absolute value of the least integer overflows and wraps, like the negation of that integer.
      return each_int(v, [&](int n) { return hn::Max(a(n), hn::Sub(hn::Zero(kInts), a(n))); });
    case Op::kAdd:
      return each_int(v, [&](int n) { return hn::Add(a(n), b(n)); });
    case Op::kSubtract:
      return each_int(v, [&](int n) { return hn::Sub(a(n), b(n)); });
    case Op::kMultiply:
      return each_int(v, [&](int n) { return hn::Mul(a(n), b(n)); });
    case Op::kMin:
      return each_int(v, [&](int n) { return hn::Min(a(n), b(n)); });
    case Op::kMax:
      return each_int(v, [&](int n) { return hn::Max(a(n), b(n)); });
    case Op::kAnd:
      return each_int(v, [&](int n) { return hn::And(a(n), b(n)); });
    case Op::kOr:
      return each_int(v, [&](int n) { return hn::Or(a(n), b(n)); });
    case Op::kXor:
      return each_int(v, [&](int n) { return hn::Xor(a(n), b(n)); });
    case Op::kNot:
      if (made.operand_type == Type::kBool) {
        return each_int(v, [&](int n) { return hn::Xor(a(n), hn::Set(kInts, 1)); });
      }
      return each_int(v, [&](int n) { return hn::Not(a(n)); });
    case Op::kSign:
      return each_int_alone(v, [&](int n) { return score_math::sign(v.i[0][n]); });
    case Op::kFloorDivide:
      return each_int_alone(v, [&](int n) { return score_math::floor_divide(v.i[0][n], v.i[1][n]); });
    case Op::kFloorMod:
      return each_int_alone(v, [&](int n) { return score_math::floor_mod(v.i[0][n], v.i[1][n]); });
    case Op::kShiftLeft:
      return each_int_alone(v, [&](int n) { return score_math::shift_left(v.i[0][n], v.i[1][n]); });
    case Op::kShiftRight:
      return each_int_alone(v, [&](int n) { return score_math::shift_right(v.i[0][n], v.i[1][n]); });
    default:
      return;
  }
}

void compare(const Instruction& made, const RowVectors& v) {
  const Ints one = hn::Set(kInts, 1);
  const auto as_int = [&](auto mask) { return hn::IfThenElseZero(hn::RebindMask(kInts, mask), one); };
  const auto all = [&](auto load, auto is_at_most) {
    switch (made.op) {
      case Op::kEqual:
        return each_int(v, [&](int n) { return as_int(hn::Eq(load(0, n), load(1, n))); });
      case Op::kNotEqual:
        return each_int(v, [&](int n) { return as_int(hn::Not(hn::Eq(load(0, n), load(1, n)))); });
      case Op::kLess:
        return each_int(v, [&](int n) { return as_int(hn::Lt(load(0, n), load(1, n))); });
      default:
        return each_int(v, [&](int n) { return as_int(is_at_most(load(0, n), load(1, n))); });
    }
  };
  if (made.operand_type == Type::kFloat) {
    all([&](int arg, int n) { return hn::LoadU(kFloats, v.f[arg] + n); },
        [](Floats a, Floats b) { return hn::Le(a, b); });
  } else {
    all([&](int arg, int n) { return hn::LoadU(kInts, v.i[arg] + n); },
        [](Ints a, Ints b) { return hn::Not(hn::Lt(b, a)); });
  }
}

void convert(const Instruction& made, const RowVectors& v) {
  if (made.op == Op::kToFloat) {
    return each_float(v, [&](int n) { return hn::ConvertTo(kFloats, hn::LoadU(kInts, v.i[0] + n)); });
  }
  if (made.operand_type == Type::kBool) return each_int(v, [&](int n) { return hn::LoadU(kInts, v.i[0] + n); });
  // Rounds towards zero. Handles NaN and numbers >= 2^31 separately, because the SIMD conversion does not support them.
  const Floats least = hn::Set(kFloats, -2147483648.0F), behind = hn::Set(kFloats, 2147483648.0F);
  each_int(v, [&](int n) {
    const Floats x = hn::LoadU(kFloats, v.f[0] + n), within = hn::IfThenElse(hn::Gt(x, least), x, least);
    const auto is_small = hn::Lt(x, behind);
    const Ints whole = hn::ConvertTo(kInts, hn::IfThenElseZero(is_small, within));
    const Ints large = hn::IfThenElse(hn::RebindMask(kInts, is_small), whole, hn::Set(kInts, 2147483647));
    return hn::IfThenZeroElse(hn::RebindMask(kInts, hn::IsNaN(x)), large);
  });
}

void select(const Instruction& made, const RowVectors& v) {
  const auto takes_first = [&](int n) { return hn::Ne(hn::LoadU(kInts, v.i[0] + n), hn::Zero(kInts)); };
  if (made.operand_type == Type::kFloat) {
    return each_float(v, [&](int n) {
      return hn::IfThenElse(hn::RebindMask(kFloats, takes_first(n)), hn::LoadU(kFloats, v.f[1] + n),
                            hn::LoadU(kFloats, v.f[2] + n));
    });
  }
  each_int(v, [&](int n) {
    return hn::IfThenElse(takes_first(n), hn::LoadU(kInts, v.i[1] + n), hn::LoadU(kInts, v.i[2] + n));
  });
}

void compute(const Instruction& made, const RowVectors& v) {
  switch (made.op) {
    case Op::kEqual:
    case Op::kNotEqual:
    case Op::kLess:
    case Op::kLessEqual:
      return compare(made, v);
    case Op::kToInt:
    case Op::kToFloat:
      return convert(made, v);
    case Op::kSelect:
      return select(made, v);
    default:
      return made.operand_type == Type::kFloat ? of_floats(made.op, v) : of_ints(made, v);
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(compute);

void compute(const expr::Instruction& made, const RowVectors& vectors) {
  HWY_DYNAMIC_DISPATCH(compute)(made, vectors);
}

}  // namespace attend::cpu
#endif
