// Users' score and mask functions in the `cpu` backend: a row of scores after the other, in float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/captured.hpp"
#include "cpu/row_vectors.hpp"
#include "expr/row_program.hpp"

namespace attend::cpu {

/// A row of scores, against keys [first_key, first_key + count).
struct FunctionRow {
  std::int32_t batch = 0, head = 0, row = 0, rows_length = 0, keys_length = 0;
  std::int32_t first_key = 0;
};

/// Runs a program. Has the buffers for that, so it is of one thread.
class RowFunction {
 public:
  /// program and captures must outlive it. most_keys: of a run. Each capture has as many extents as the program's loads
  /// have subscripts, all at least 1.
  RowFunction(const expr::RowProgram& program, std::span<const CapturedView> captures, int most_keys);

  /// Computes the program's results for `count` keys. scores: as many, or null where the program asks for none.
  /// Operations are float32's, each rounded; those that are no arithmetic (exp, log, sin, tanh, erf, pow, rsqrt, ...)
  /// within 4 units in the last place. A value depends on nothing but its own key. What depends on no key is rounded
  /// once from float64, so there rsqrt() and its kind may have other last bits.
  void run(const FunctionRow& row, const float* scores, int count);

  /// Of the last run: `count` values. Result n is a float.
  [[nodiscard]] const float* floats(std::size_t n);
  /// Result n is an integer, or a bool: 0 or 1.
  [[nodiscard]] const std::int32_t* ints(std::size_t n);

 private:
  [[nodiscard]] double scalar(const expr::Instruction& made, const FunctionRow& row) const;
  [[nodiscard]] float* float_buffer(std::int32_t at);
  [[nodiscard]] std::int32_t* int_buffer(std::int32_t at);
  [[nodiscard]] RowVectors vectors(const expr::Instruction& made);
  void load(const expr::Instruction& made, const RowVectors& v);

  const expr::RowProgram& program_;
  std::span<const CapturedView> captures_;
  std::size_t padded_;  // elements of a buffer
  int count_ = 0;
  std::vector<double> scalars_;  // each a float32, an integer or a bool
  std::vector<float> floats_;
  std::vector<std::int32_t> ints_;
  std::vector<float> float_operands_;  // scalars as vectors: of one instruction's operands, then of each result
  std::vector<std::int32_t> int_operands_;
  std::vector<std::int64_t> offsets_;  // of elements of a capture
};

}  // namespace attend::cpu
