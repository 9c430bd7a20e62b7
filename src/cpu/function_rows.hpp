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

/// Returns whether the derivative by the score may differ from 1.
[[nodiscard]] bool has_own_slope(const core::CustomScore& score);

/// Describes row `row` of a query head of a sequence, starting at a key.
[[nodiscard]] FunctionRow function_row(const core::Sequence& s, std::int64_t head, std::int64_t row,
                                       std::int64_t first_key);

/// Scores of up to 128 keys and 64 rows: s[key * stride + row].
struct FunctionTile {
  float* s;
  std::int64_t stride;
  std::int64_t key_begin;  // position in the sequence
  std::int64_t num_keys;
  std::int64_t row_begin;  // position in the sequence
  std::int64_t num_rows;
  float* slopes;  // out: derivatives by the score, same layout, 0 where the key is hidden; null: not computed
};

/// The score function for rows of one query head of one sequence. For one thread.
class FunctionRows {
 public:
  /// The problem must have a function with a program.
  FunctionRows(const core::Problem& p, const core::Sequence& s, std::int64_t head);
  FunctionRows(const FunctionRows&) = delete;
  FunctionRows& operator=(const FunctionRows&) = delete;

  /// Applies the function in place to scores of a row that start at first_key. slopes may be null.
  void apply(std::int64_t row, std::int64_t first_key, std::int64_t count, float* scores, float* slopes);

  /// Applies the function to a tile, whose numbers times `factor` are scores. Writes its slopes for full groups of 16
  /// rows.
  void apply(const FunctionTile& tile, float factor);

 private:
  /// count is at most kMostKeys.
  void apply_to_some(std::int64_t row, std::int64_t first_key, int count, float* scores, float* slopes);
  [[nodiscard]] RowFunction& function(bool with_slope);

  static constexpr int kMostKeys = 128, kRowsOfGroup = 16;

  const expr::ScoreProgram& program_;
  const core::Sequence s_;
  std::int64_t head_;
  bool keeps_hidden_;  // a score of -inf belongs to a key that the bias hides
  std::vector<CapturedView> captures_;
  std::optional<RowFunction> value_, value_and_slope_;
};

}  // namespace attend::cpu
