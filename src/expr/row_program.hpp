// A function as instructions over runs of keys: what a CPU backend computes row by row.
//
// What depends on neither the score nor the key is a scalar, computed once a row. All else is a vector of a value for
// each key, in a few buffers that instructions use again when their values are no longer wanted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Operand {
  bool is_vector = false;
  std::int32_t at = -1;  ///< the buffer, of floats or of integers as the type says, or the scalar
  Type type = Type::kFloat;
};

struct Instruction {
  Op op = Op::kVariable;
  Type operand_type = Type::kFloat;  ///< Graph::operand_type()
  std::int32_t which = 0;            ///< of kVariable and kLoad
  std::int32_t num_args = 0;
  std::array<Operand, kMostSubscripts> args;
  Operand result;
};

/// Bools are integers, 0 or 1, and share buffers with them.
struct RowProgram {
  std::vector<double> constants;     ///< the first scalars: float32s, integers, 0 or 1
  std::vector<Instruction> of_rows;  ///< their results are the next ones, in order
  std::vector<Instruction> of_keys;  ///< an instruction may write to a buffer that it reads
  std::vector<Operand> results;
  std::int32_t num_scalars = 0;
  std::int32_t num_float_buffers = 0;
  std::int32_t num_int_buffers = 0;

  [[nodiscard]] static RowProgram of(const Graph& graph, std::span<const Id> results);
};

}  // namespace attend::expr
