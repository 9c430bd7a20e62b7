#include "cpu/function_rows.hpp"

#include <algorithm>
#include <limits>

#include "expr/score_program.hpp"

namespace attend::cpu {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

}  // namespace

std::vector<CapturedView> captured_views(const core::CustomScore& score) {
  std::vector<CapturedView> views;
  for (std::size_t n = 0; n < score.captured.size(); ++n) {
    views.push_back(captured_view(score.captured[n], score.program->graph.captures()[n].shape.size()));
  }
  return views;
}

bool has_own_slope(const core::CustomScore& score) {
  return score.program->slope != expr::Slope::kOne;
}

FunctionRow function_row(const core::Sequence& s, std::int64_t head, std::int64_t row, std::int64_t first_key) {
  const auto number = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  return {number(s.index), number(head), number(row), number(s.seqlen_q), number(s.seqlen_k), number(first_key)};
}

FunctionRows::FunctionRows(const core::Problem& p, const core::Sequence& s, std::int64_t head)
    : program_(*p.custom_score->program),
      s_(s),
      head_(head),
      keeps_hidden_(p.bias.has_value()),
      captures_(captured_views(*p.custom_score)) {}

RowFunction& FunctionRows::function(bool with_slope) {
  std::optional<RowFunction>& function = with_slope ? value_and_slope_ : value_;
  if (!function) {
    function.emplace(with_slope ? program_.value_and_slope : program_.value, captures_, kMostKeys);
  }
  return *function;
}

void FunctionRows::apply_to_some(std::int64_t row, std::int64_t first_key, int count, float* scores, float* slopes) {
  RowFunction& f = function(slopes != nullptr);
  f.run(function_row(s_, head_, row, first_key), scores, count);
  const float* values = f.floats(0);
  if (slopes != nullptr) {
    const float* by_score = f.floats(1);
    for (int n = 0; n < count; ++n) slopes[n] = values[n] == kHidden ? 0.0F : by_score[n];
  }
  if (keeps_hidden_) {
    for (int n = 0; n < count; ++n) scores[n] = scores[n] == kHidden ? kHidden : values[n];
  } else {
    std::copy_n(values, count, scores);
  }
}

void FunctionRows::apply(std::int64_t row, std::int64_t first_key, std::int64_t count, float* scores, float* slopes) {
  for (std::int64_t n = 0; n < count; n += kMostKeys) {
    const auto some = static_cast<int>(std::min<std::int64_t>(kMostKeys, count - n));
    apply_to_some(row, first_key + n, some, scores + n, slopes == nullptr ? nullptr : slopes + n);
  }
}

void FunctionRows::apply(const FunctionTile& tile, float factor) {
  alignas(64) float scores[kRowsOfGroup][kMostKeys];
  alignas(64) float slopes[kRowsOfGroup][kMostKeys] = {};
  const auto num_keys = static_cast<int>(tile.num_keys);
  for (std::int64_t first = 0; first < tile.num_rows; first += kRowsOfGroup) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kRowsOfGroup, tile.num_rows - first));
    for (int key = 0; key < num_keys; ++key) {
      const float* from = tile.s + key * tile.stride + first;
      for (int r = 0; r < rows; ++r) scores[r][key] = from[r] * factor;
    }
    for (int r = 0; r < rows; ++r) {
      apply_to_some(tile.row_begin + first + r, tile.key_begin, num_keys, scores[r],
                    tile.slopes == nullptr ? nullptr : slopes[r]);
    }
    for (int key = 0; key < num_keys; ++key) {
      float* to = tile.s + key * tile.stride + first;
      for (int r = 0; r < rows; ++r) to[r] = scores[r][key];
    }
    if (tile.slopes == nullptr) continue;
    for (int r = rows; r < kRowsOfGroup; ++r) std::fill_n(slopes[r], num_keys, 0.0F);
    for (int key = 0; key < num_keys; ++key) {
      float* to = tile.slopes + key * tile.stride + first;
      for (int r = 0; r < kRowsOfGroup; ++r) to[r] = slopes[r][key];
    }
  }
}

}  // namespace attend::cpu
