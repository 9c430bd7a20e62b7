// Applies a problem's score function to rows and tiles of scores, in float32. The `cpu` and `cpu_naive` backends apply
// it between bias and masks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "cpu/score_function.hpp"

namespace attend::cpu {

/// Returns the captures of a problem's score function.
[[nodiscard]] std::vector<CapturedView> captured_views(const core::CustomScore& score);

/// Returns whether the derivative of the function with respect to the score may differ from 1.
[[nodiscard]] bool has_own_slope(const core::CustomScore& score);

/// Returns the position of row `row` of a query head: its sequence, head and first key.
[[nodiscard]] FunctionRow function_row(const core::Sequence& s, std::int64_t head, std::int64_t row,
                                       std::int64_t first_key);

/// Scores of up to 128 keys and 64 query rows: s[key * stride + row].
struct FunctionTile {
  float* s;
  std::int64_t stride;
  std::int64_t key_begin;  // position of the first key in the sequence
  std::int64_t num_keys;
  std::int64_t row_begin;  // position of the first row in the sequence
  std::int64_t num_rows;
  // Output: derivatives with respect to the score, in the layout of s. The derivative of a hidden key is 0. If null,
  // the derivatives are not computed.
  float* slopes;
};

/// Applies the score function to rows of one query head of one sequence. Not thread-safe.
class FunctionRows {
 public:
  /// The problem must have a function with a program.
  FunctionRows(const core::Problem& p, const core::Sequence& s, std::int64_t head);
  FunctionRows(const FunctionRows&) = delete;
  FunctionRows& operator=(const FunctionRows&) = delete;

  /// Applies the function in place to `count` scores of a row. The first score belongs to key first_key. `slopes` may
  /// be null.
  void apply(std::int64_t row, std::int64_t first_key, std::int64_t count, float* scores, float* slopes);

  /// Applies the function to a tile. The tile's values times `factor` are the scores. If the last group of 16 rows is
  /// incomplete, also writes 0 to the slopes of its missing rows.
  void apply(const FunctionTile& tile, float factor);

 private:
  /// Applies the function to `count` <= kMostKeys scores.
  void apply_to_some(std::int64_t row, std::int64_t first_key, int count, float* scores, float* slopes);
  [[nodiscard]] RowFunction& function(bool with_slope);

  static constexpr int kMostKeys = 128, kRowsOfGroup = 16;

  const expr::ScoreProgram& program_;
  const core::Sequence s_;
  std::int64_t head_;
  // If true, a score of -inf means that the bias hides the key, and the function must keep the score.
  bool keeps_hidden_;
  std::vector<CapturedView> captures_;
  std::optional<RowFunction> value_, value_and_slope_;
};

}  // namespace attend::cpu
