// Executes one operation of a custom function on vectors of float32 and int32, with SIMD instructions.
#pragma once

#include <cstdint>

#include "expr/row_program.hpp"

namespace attend::cpu {

/// Operands and results of one instruction. Buffers are padded to full vectors. Values beyond `count` are arbitrary.
struct RowVectors {
  const float* f[expr::kMostSubscripts];
  const std::int32_t* i[expr::kMostSubscripts];
  float* out_f;
  std::int32_t* out_i;
  int count;
};

/// Executes one instruction, whose operation must not be kVariable or kLoad.
void compute(const expr::Instruction& made, const RowVectors& vectors);

}  // namespace attend::cpu
