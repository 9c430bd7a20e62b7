// A function as instructions over runs of keys. A CPU backend executes them row by row.
//
// A value that depends on neither the score nor the key is a scalar, computed once per row. Every other value is a
// vector with one element per key. Vectors share a few buffers, which instructions reuse when their values are no
// longer needed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expr/graph.hpp"

namespace attend::expr {

struct Operand {
  bool is_vector = false;
  std::int32_t at = -1;  ///< index of the scalar, or of the buffer (of floats or of integers, by `type`)
  Type type = Type::kFloat;
};

struct Instruction {
  Op op = Op::kVariable;
  Type operand_type = Type::kFloat;  ///< Graph::operand_type()
  std::int32_t which = 0;            ///< for kVariable and kLoad
  std::int32_t num_args = 0;
  std::array<Operand, kMostSubscripts> args;
  Operand result;
};

/// Bools are integers, 0 or 1, and share buffers with them.
struct RowProgram {
  std::vector<double> constants;     ///< the first scalars: float32s, integers, 0 or 1
  std::vector<Instruction> of_rows;  ///< their results are the next scalars, in order
  std::vector<Instruction> of_keys;  ///< an instruction may write to a buffer that it reads
  std::vector<Operand> results;
  std::int32_t num_scalars = 0;
  std::int32_t num_float_buffers = 0;
  std::int32_t num_int_buffers = 0;

  [[nodiscard]] static RowProgram of(const Graph& graph, std::span<const Id> results);
};

}  // namespace attend::expr
