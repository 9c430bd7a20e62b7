#include "cpu/score_function.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace attend::cpu {
namespace {

using expr::Instruction;
using expr::Op;
using expr::Operand;
using expr::Type;

constexpr std::size_t kLanes = 16;  // lanes of the widest vector; a buffer's size is a multiple of it

/// Throws if a capture's rank or extents do not match the program, because loads must stay within tensors.
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
      if (made.result.type == Type::kFloat) {
        x = elements.as_float(at);
      } else {  // This is a separate branch because the operator ?: would convert the integer to float.
        x = made.result.type == Type::kInt ? elements.as_int(at) : elements.as_bool(at);
      }
    });
    return x;
  }
  if (made.op == Op::kFloorDivide && made.operand_type == Type::kFloat) {
    // Computes the floor of the rounded quotient, like the vector code.
    return std::floor(static_cast<float>(arg(0) / arg(1)));
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
  std::int64_t of_row = 0;  // memory offset that results from the subscripts that are the same for all keys
  for (std::int32_t d = 0; d < view.rank; ++d) {
    const Operand& subscript = made.args[static_cast<std::size_t>(d)];
    if (subscript.is_vector) continue;
    of_row += offset(view, d, static_cast<std::int64_t>(scalars_[static_cast<std::size_t>(subscript.at)]));
  }
  std::fill_n(offsets_.begin(), v.count, of_row);
  for (std::int32_t d = 0; d < view.rank; ++d) {
    if (!made.args[static_cast<std::size_t>(d)].is_vector) continue;
    const auto last = static_cast<std::int32_t>(std::min<std::int64_t>(view.extent[d] - 1, INT32_MAX));
    for (int n = 0; n < v.count; ++n) {
      offsets_[static_cast<std::size_t>(n)] += std::clamp(v.i[d][n], 0, last) * view.stride[d];
    }
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
      compute(made, v);
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
