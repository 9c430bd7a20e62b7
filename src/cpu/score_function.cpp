#include "cpu/score_function.hpp"

// Each vector operation once per SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/score_function.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <type_traits>

#include "core/half.hpp"
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
/// One after the other.
template <class F>
void each_int_alone(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; ++n) v.out_i[n] = f(n);
}
template <class F>
void one_by_one(const RowVectors& v, F f) {
  for (int n = 0; n < v.count; ++n) v.out_f[n] = f(n);
}

/// By `vector` in lanes in [low, high], which has `inside`, by `scalar` in others: NaN, infinities, large numbers. So a
/// value does not depend on its neighbours.
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
    float inputs[hn::MaxLanes(kFloats)], results[hn::MaxLanes(kFloats)];  // out_f may be where x was
    hn::StoreU(x, kFloats, inputs);
    hn::StoreU(result, kFloats, results);
    for (int lane = 0; lane < static_cast<int>(hn::Lanes(kFloats)); ++lane) {
      const float y = inputs[lane];
      v.out_f[n + lane] = y >= low && y <= high ? results[lane] : scalar(y);
    }
  }
}

void of_one_float(Op op, const RowVectors& v) {
  constexpr float kLargest = 3e38F, kSmallest = 1e-37F;
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
          [](float y) { return 1 / (1 + std::exp(-y)); });
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

void of_floats(Op op, const RowVectors& v) {
  const auto a = [&](int n) { return hn::LoadU(kFloats, v.f[0] + n); };
  const auto b = [&](int n) { return hn::LoadU(kFloats, v.f[1] + n); };
  // NaN if either is
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
      return one_by_one(v, [&](int n) {
        const float y = v.f[1][n], rest = std::fmod(v.f[0][n], y);
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
      });
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
    case Op::kAbs:  // wraps, as a minus does
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
  // Towards zero. What is 2^31 or more, or NaN, no conversion knows
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
namespace {

HWY_EXPORT(compute);

using expr::Instruction;
using expr::Op;
using expr::Operand;
using expr::Type;

constexpr std::size_t kLanes = 16;  // of the widest vector: buffers are whole ones

/// Elements of a type, as the values that a function has.
template <class T>
struct Stored {
  const T* data;

  [[nodiscard]] float as_float(std::int64_t at) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<float>(data[at]);
    } else {
      return core::to_float(data[at]);
    }
  }
  /// Integers wrap; floats go towards zero, within the range of integers.
  [[nodiscard]] std::int32_t as_int(std::int64_t at) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(data[at]));
    } else {
      return score_math::to_int(as_float(at));
    }
  }
  [[nodiscard]] bool as_bool(std::int64_t at) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return data[at] != 0;
    } else {
      return as_float(at) != 0;
    }
  }
};

/// Calls visit() with the elements of a view.
template <class Visit>
void with_elements(const CapturedView& view, const Visit& visit) {
  const auto of = [&]<class T>(const T* data) { visit(Stored<T>{data}); };
  switch (view.type) {
    case CapturedType::kF32:
      return of(static_cast<const float*>(view.data));
    case CapturedType::kF16:
      return of(static_cast<const core::Half*>(view.data));
    case CapturedType::kBF16:
      return of(static_cast<const core::BFloat16*>(view.data));
    case CapturedType::kF64:
      return of(static_cast<const double*>(view.data));
    case CapturedType::kI32:
      return of(static_cast<const std::int32_t*>(view.data));
    case CapturedType::kI64:
      return of(static_cast<const std::int64_t*>(view.data));
    case CapturedType::kU8:
      return of(static_cast<const unsigned char*>(view.data));
  }
}

/// How far a subscript leads, which is taken within its extent.
std::int64_t offset(const CapturedView& view, std::int32_t dimension, std::int64_t subscript) {
  return std::clamp<std::int64_t>(subscript, 0, view.extent[dimension] - 1) * view.stride[dimension];
}

/// Extents and ranks are what keeps loads within tensors.
void require_captures(const expr::RowProgram& program, std::span<const CapturedView> captures) {
  for (const auto* instructions : {&program.of_rows, &program.of_keys}) {
    for (const Instruction& made : *instructions) {
      if (made.op != Op::kLoad) continue;
      const auto which = static_cast<std::size_t>(made.which);
      const bool fits = which < captures.size() && captures[which].rank == made.num_args &&
                        std::all_of(captures[which].extent, captures[which].extent + made.num_args,
                                    [](std::int64_t extent) { return extent >= 1; });
      if (!fits) throw std::logic_error("score function: a captured tensor that is not the program's");
    }
  }
}

std::int32_t of_row(expr::Variable variable, const FunctionRow& row) {
  switch (variable) {
    case expr::Variable::kBatch:
      return row.batch;
    case expr::Variable::kHead:
      return row.head;
    case expr::Variable::kRow:
      return row.row;
    case expr::Variable::kRowsLength:
      return row.rows_length;
    default:
      return row.keys_length;
  }
}

}  // namespace

RowFunction::RowFunction(const expr::RowProgram& program, std::span<const CapturedView> captures, int most_keys)
    : program_(program),
      captures_(captures),
      padded_((static_cast<std::size_t>(most_keys) + kLanes - 1) / kLanes * kLanes) {
  require_captures(program, captures);
  const std::size_t operands = expr::kMostSubscripts + program.results.size();
  scalars_.resize(static_cast<std::size_t>(program.num_scalars));
  for (std::size_t n = 0; n < program.constants.size(); ++n) scalars_[n] = program.constants[n];
  floats_.resize(padded_ * static_cast<std::size_t>(program.num_float_buffers));
  ints_.resize(padded_ * static_cast<std::size_t>(program.num_int_buffers));
  float_operands_.resize(padded_ * operands);
  int_operands_.resize(padded_ * operands);
  offsets_.resize(padded_);
}

float* RowFunction::float_buffer(std::int32_t at) {
  return floats_.data() + padded_ * static_cast<std::size_t>(at);
}
std::int32_t* RowFunction::int_buffer(std::int32_t at) {
  return ints_.data() + padded_ * static_cast<std::size_t>(at);
}

double RowFunction::scalar(const Instruction& made, const FunctionRow& row) const {
  const auto arg = [&](std::int32_t n) {
    return n < made.num_args ? scalars_[static_cast<std::size_t>(made.args[n].at)] : 0.0;
  };
  if (made.op == Op::kVariable) return of_row(static_cast<expr::Variable>(made.which), row);
  if (made.op == Op::kLoad) {
    const CapturedView& view = captures_[static_cast<std::size_t>(made.which)];
    std::int64_t at = 0;
    for (std::int32_t d = 0; d < view.rank; ++d) at += offset(view, d, static_cast<std::int64_t>(arg(d)));
    double x = 0;
    with_elements(view, [&](const auto& elements) {
      x = made.result.type == Type::kFloat ? elements.as_float(at)
          : made.result.type == Type::kInt ? elements.as_int(at)
                                           : elements.as_bool(at);
    });
    return x;
  }
  if (made.op == Op::kFloorDivide && made.operand_type == Type::kFloat) {
    return std::floor(static_cast<float>(arg(0) / arg(1)));  // of the rounded quotient, as in vectors
  }
  const double x = expr::apply(made.op, made.operand_type, arg(0), arg(1), arg(2));
  return made.result.type == Type::kFloat ? static_cast<float>(x) : x;
}

RowVectors RowFunction::vectors(const Instruction& made) {
  RowVectors v = {};
  v.count = count_;
  const std::size_t whole = (static_cast<std::size_t>(count_) + kLanes - 1) / kLanes * kLanes;
  for (std::int32_t n = 0; n < made.num_args; ++n) {
    const Operand& arg = made.args[static_cast<std::size_t>(n)];
    const std::size_t operand = padded_ * static_cast<std::size_t>(n);
    if (arg.type == Type::kFloat) {
      float* const room = float_operands_.data() + operand;
      if (!arg.is_vector) std::fill_n(room, whole, static_cast<float>(scalars_[static_cast<std::size_t>(arg.at)]));
      v.f[n] = arg.is_vector ? float_buffer(arg.at) : room;
    } else {
      std::int32_t* const room = int_operands_.data() + operand;
      if (!arg.is_vector)
        std::fill_n(room, whole, static_cast<std::int32_t>(scalars_[static_cast<std::size_t>(arg.at)]));
      v.i[n] = arg.is_vector ? int_buffer(arg.at) : room;
    }
  }
  if (made.result.type == Type::kFloat) {
    v.out_f = float_buffer(made.result.at);
  } else {
    v.out_i = int_buffer(made.result.at);
  }
  return v;
}

void RowFunction::load(const Instruction& made, const RowVectors& v) {
  const CapturedView& view = captures_[static_cast<std::size_t>(made.which)];
  std::fill_n(offsets_.begin(), v.count, 0);
  for (std::int32_t d = 0; d < view.rank; ++d) {
    for (int n = 0; n < v.count; ++n) offsets_[static_cast<std::size_t>(n)] += offset(view, d, v.i[d][n]);
  }
  const std::int64_t* at = offsets_.data();
  with_elements(view, [&](const auto& elements) {
    if (made.result.type == Type::kFloat) {
      for (int n = 0; n < v.count; ++n) v.out_f[n] = elements.as_float(at[n]);
    } else if (made.result.type == Type::kInt) {
      for (int n = 0; n < v.count; ++n) v.out_i[n] = elements.as_int(at[n]);
    } else {
      for (int n = 0; n < v.count; ++n) v.out_i[n] = elements.as_bool(at[n]) ? 1 : 0;
    }
  });
}

void RowFunction::run(const FunctionRow& row, const float* scores, int count) {
  if (count > static_cast<int>(padded_)) throw std::logic_error("score function: more keys than its buffers have");
  count_ = count;
  for (const Instruction& made : program_.of_rows) {
    scalars_[static_cast<std::size_t>(made.result.at)] = scalar(made, row);
  }
  for (const Instruction& made : program_.of_keys) {
    const RowVectors v = vectors(made);
    if (made.op == Op::kLoad) {
      load(made, v);
    } else if (made.op != Op::kVariable) {
      HWY_DYNAMIC_DISPATCH(compute)(made, v);
    } else if (made.result.type == Type::kFloat) {
      std::copy_n(scores, count, v.out_f);
    } else {
      for (int n = 0; n < count; ++n) v.out_i[n] = row.first_key + n;
    }
  }
}

const float* RowFunction::floats(std::size_t n) {
  const Operand& result = program_.results[n];
  if (result.is_vector) return float_buffer(result.at);
  float* const room = float_operands_.data() + padded_ * (expr::kMostSubscripts + n);
  std::fill_n(room, count_, static_cast<float>(scalars_[static_cast<std::size_t>(result.at)]));
  return room;
}

const std::int32_t* RowFunction::ints(std::size_t n) {
  const Operand& result = program_.results[n];
  if (result.is_vector) return int_buffer(result.at);
  std::int32_t* const room = int_operands_.data() + padded_ * (expr::kMostSubscripts + n);
  std::fill_n(room, count_, static_cast<std::int32_t>(scalars_[static_cast<std::size_t>(result.at)]));
  return room;
}

}  // namespace attend::cpu
#endif
