// A function as a list of instructions that a CPU backend executes for a row and a range of keys.
//
// A value that depends on neither the score nor the key is a scalar and is computed once per row. Every other value is
// a vector with one element per key. Vectors are stored in a few buffers. An instruction reuses a buffer if its value
// is no longer needed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Operand {
  bool is_vector = false;
  /// Index of the scalar, or of the buffer if is_vector is true. Buffers of floats and buffers of integers are numbered
  /// separately.
  std::int32_t at = -1;
  Type type = Type::kFloat;
};

struct Instruction {
  Op op = Op::kVariable;
  Type operand_type = Type::kFloat;  ///< Graph::operand_type()
  std::int32_t which = 0;            ///< the Variable if op is kVariable, or the index of the capture if op is kLoad
  std::int32_t num_args = 0;
  std::array<Operand, kMostSubscripts> args;
  Operand result;
};

/// The instructions of a function. A bool is stored as an integer, 0 or 1, in a buffer of integers.
struct RowProgram {
  std::vector<double> constants;  ///< values of the first scalars: float32 numbers, integers, or bools as 0 or 1
  /// Instructions executed once per row; their results are the scalars after the constants, in this order.
  std::vector<Instruction> of_rows;
  /// Instructions that compute vectors; an instruction may write to a buffer that it also reads.
  std::vector<Instruction> of_keys;
  std::vector<Operand> results;
  std::int32_t num_scalars = 0;
  std::int32_t num_float_buffers = 0;
  std::int32_t num_int_buffers = 0;

  [[nodiscard]] static RowProgram of(const Graph& graph, std::span<const Id> results);
};

}  // namespace attend::expr
