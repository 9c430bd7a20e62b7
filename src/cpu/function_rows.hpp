// A problem's score function over rows and tiles of scores, in float32: what the `cpu` and `cpu_naive` backends compute
// between bias and masks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "cpu/score_function.hpp"

namespace attend::cpu {

/// The captures of a problem's score function.
[[nodiscard]] std::vector<CapturedView> captured_views(const core::CustomScore& score);

/// Has it a derivative by the score other than 1?
[[nodiscard]] bool has_own_slope(const core::CustomScore& score);

/// Row `row` of a query head of a sequence, from a key on.
[[nodiscard]] FunctionRow function_row(const core::Sequence& s, std::int64_t head, std::int64_t row,
                                       std::int64_t first_key);

/// Scores of up to 128 keys and 64 rows: s[key * stride + row].
struct FunctionTile {
  float* s;
  std::int64_t stride;
  std::int64_t key_begin;  // of the sequence
  std::int64_t num_keys;
  std::int64_t row_begin;  // of the sequence
  std::int64_t num_rows;
  float* slopes;  // out: derivatives by the score, laid out alike, 0 where the key is hidden; null: not wanted
};

/// The function for rows of one query head of one sequence. For one thread.
class FunctionRows {
 public:
  /// The problem has a function with a program.
  FunctionRows(const core::Problem& p, const core::Sequence& s, std::int64_t head);
  FunctionRows(const FunctionRows&) = delete;
  FunctionRows& operator=(const FunctionRows&) = delete;

  /// Scores of a row, from first_key on, in place. slopes may be null.
  void apply(std::int64_t row, std::int64_t first_key, std::int64_t count, float* scores, float* slopes);

  /// The same of a tile, whose numbers times `factor` are scores. Its slopes are written for whole groups of 16 rows.
  void apply(const FunctionTile& tile, float factor);

 private:
  /// At most kMostKeys.
  void apply_to_some(std::int64_t row, std::int64_t first_key, int count, float* scores, float* slopes);
  [[nodiscard]] RowFunction& function(bool with_slope);

  static constexpr int kMostKeys = 128, kRowsOfGroup = 16;

  const expr::ScoreProgram& program_;
  const core::Sequence s_;
  std::int64_t head_;
  bool keeps_hidden_;  // a score of -inf is that of a key which the bias hides
  std::vector<CapturedView> captures_;
  std::optional<RowFunction> value_, value_and_slope_;
};

}  // namespace attend::cpu
