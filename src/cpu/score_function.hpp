// Custom score and mask functions in the `cpu` backend. Evaluates one row of scores at a time, in float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/captured.hpp"
#include "cpu/row_vectors.hpp"
#include "expr/row_program.hpp"

namespace attend::cpu {

/// A row of scores, for keys [first_key, first_key + count).
struct FunctionRow {
  std::int32_t batch = 0, head = 0, row = 0, rows_length = 0, keys_length = 0;
  std::int32_t first_key = 0;
};

/// Runs a program. The object owns the program's buffers, so each thread needs a separate one.
class RowFunction {
 public:
  /// program and captures must outlive the object. most_keys: maximum keys of a run. Each capture has as many extents
  /// as the program's loads have subscripts, all at least 1.
  RowFunction(const expr::RowProgram& program, std::span<const CapturedView> captures, int most_keys);

  /// Computes the program's results for `count` keys. scores: `count` values, or null if the program does not use the
  /// score. Arithmetic is float32 with each operation rounded. Other functions (exp, log, sin, tanh, erf, pow, rsqrt,
  /// ...) are accurate to 4 units in the last place. A value depends only on its key. Values that are the same for all
  /// keys are computed in float64 and rounded once, so the last bits of rsqrt() and similar functions may differ there.
  void run(const FunctionRow& row, const float* scores, int count);

  /// Returns `count` values of result n of the last run, a float.
  [[nodiscard]] const float* floats(std::size_t n);
  /// Returns the values of result n, an integer, or a bool as 0 or 1.
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
  std::vector<double> scalars_;  // each is a float32, an integer or a bool
  std::vector<float> floats_;
  std::vector<std::int32_t> ints_;
  std::vector<float> float_operands_;  // scalars as vectors: operands of one instruction, then results
  std::vector<std::int32_t> int_operands_;
  std::vector<std::int64_t> offsets_;  // offsets of elements of a capture
};

}  // namespace attend::cpu
