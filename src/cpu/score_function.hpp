// Evaluates custom score and mask functions in the `cpu` backend, in float32, for one query row and a range of keys at
// a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/captured.hpp"
#include "cpu/row_vectors.hpp"
#include "expr/row_program.hpp"

namespace attend::cpu {

/// Position of a row of scores: batch, head and query row, the lengths of the sequence, and the first key of the row.
struct FunctionRow {
  std::int32_t batch = 0, head = 0, row = 0, rows_length = 0, keys_length = 0;
  std::int32_t first_key = 0;
};

/// Runs the program of a function. The object owns the program's buffers, so each thread needs its own object.
class RowFunction {
 public:
  /// `program` and `captures` must outlive the object. A run has at most `most_keys` keys. The rank of each capture
  /// must equal the number of subscripts of the program's loads from it, and all extents must be at least 1.
  RowFunction(const expr::RowProgram& program, std::span<const CapturedView> captures, int most_keys);

  /// Computes the program's results for `count` keys. `scores` holds `count` values, or is null if the program does not
  /// use the score. Arithmetic is float32, and the result of each operation is rounded. Other functions (exp, log, sin,
  /// tanh, erf, pow, rsqrt, ...) are accurate to 4 units in the last place. The value for a key does not depend on the
  /// other keys of the run. A value that is the same for all keys is instead computed in float64 and rounded once. For
  /// such a value, the last bits of rsqrt() and similar functions may therefore be different.
  void run(const FunctionRow& row, const float* scores, int count);

  /// Returns the values of result n of the last run, one per key. Result n must be a float.
  [[nodiscard]] const float* floats(std::size_t n);
  /// Returns the values of result n, which must be an integer or a bool (0 or 1).
  [[nodiscard]] const std::int32_t* ints(std::size_t n);

 private:
  [[nodiscard]] double scalar(const expr::Instruction& made, const FunctionRow& row) const;
  [[nodiscard]] float* float_buffer(std::int32_t at);
  [[nodiscard]] std::int32_t* int_buffer(std::int32_t at);
  [[nodiscard]] RowVectors vectors(const expr::Instruction& made);
  void load(const expr::Instruction& made, const RowVectors& v);

  const expr::RowProgram& program_;
  std::span<const CapturedView> captures_;
  std::size_t padded_;  // number of elements in a buffer
  int count_ = 0;
  std::vector<double> scalars_;  // each value is a float32, an integer or a bool
  std::vector<float> floats_;
  std::vector<std::int32_t> ints_;
  // Memory for scalars that are copied to vectors: first the operands of one instruction, then the results of the
  // program.
  std::vector<float> float_operands_;
  std::vector<std::int32_t> int_operands_;
  std::vector<std::int64_t> offsets_;  // offsets of elements of a capture
};

}  // namespace attend::cpu
