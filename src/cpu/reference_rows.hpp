// Components of the reference: rows in float64, the scores of a head, and the gradients of its scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "core/elements.hpp"
#include "cpu/parallel.hpp"
#include "cpu/reference_function.hpp"
#include "kernels/attention/coarse_lse.cuh"
#include "kernels/attention/score_transform.cuh"

namespace attend::cpu::reference {

using core::Matrix;
using core::Problem;
using core::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Rows of a head, in float64.
class Rows {
 public:
  explicit Rows(const Matrix& m) : cols_(m.cols), values_(static_cast<std::size_t>(m.rows * m.cols)) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      if (m.dtype == DType::kF32) {  // the compiler vectorises this loop
        const float* from = static_cast<const float*>(m.data) + r * m.row_stride;
        std::copy_n(from, m.cols, row(r));
      } else {
        for (std::int64_t c = 0; c < m.cols; ++c) row(r)[c] = core::load(m, r, c);
      }
    }
  }
  Rows(std::int64_t rows, std::int64_t cols) : cols_(cols), values_(static_cast<std::size_t>(rows * cols)) {}

  [[nodiscard]] double* row(std::int64_t r) { return values_.data() + r * cols_; }
  [[nodiscard]] const double* row(std::int64_t r) const { return values_.data() + r * cols_; }

  void store_to(const Matrix& m) const {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) core::store(m, r, c, row(r)[c]);
    }
  }

 private:
  std::int64_t cols_;
  std::vector<double> values_;
};

/// Returns <a, b> of n elements.
[[nodiscard]] double dot(const double* a, const double* b, std::int64_t n);

/// Returns exp(x). Handles arguments that underflow and NaN separately, because std::exp is slow for them.
inline double exponential(double x) {
  constexpr double kUnderflow = -750;
  return x < kUnderflow ? 0.0 : std::isnan(x) ? x : std::exp(x);
}

/// An entry of the score matrix and its derivatives.
struct Score {
  double value;            // s_ij
  double slope;            // derivative of a transform with respect to scale <q_i, k_j>; 1 without a transform
  double of_function = 1;  // derivative of the custom function with respect to its input
  double before_function = 0;
};

/// Values with which one entry of the score matrix contributes to gradients.
struct ScoreGradient {
  double z;                // p_ij after dropout
  double ds;               // gradient of s_ij before the custom function
  double slope;            // derivative of a transform
  double ds_of_function;   // gradient of s_ij
  double before_function;  // s_ij before the custom function
};

/// The scores of one query head of one sequence.
class Scores {
 public:
  Scores(const Problem& p, const Sequence& s, std::int64_t head)
      : p_(p), s_(s), head_(head), window_(p.window(s)), tiles_(p.seen_tiles(s, head)), dropout_(p.dropout(s, head)) {
    if (p.custom_score != nullptr) function_ = std::make_unique<ReferenceFunction>(p, s, head);
  }

  [[nodiscard]] KeyRange keys(std::int64_t i) const { return window_.row(i); }

  /// Returns whether a mask or the bias hides the key from the row. The product q.k does not matter.
  [[nodiscard]] bool masked(std::int64_t i, std::int64_t j) const {
    if (!tiles_.see_all() && !tiles_.sees(i, j)) return true;
    if (p_.bias && core::load(*p_.bias, s_.batch, head_, i, j) == -kInfinity) return true;
    return p_.mask && core::load(*p_.mask, s_.batch, head_, i, j) == 0;
  }

  [[nodiscard]] Score at(std::int64_t i, std::int64_t j, double q_dot_k) const {
    Score score = {p_.scale * q_dot_k, 1.0};
    if (p_.transforms_scores()) {
      const auto [value, slope] = TransformedScore<double>::of(score.value, p_.transform_cap);
      score = {value, slope};
    }
    if (p_.bias) score.value += core::load(*p_.bias, s_.batch, head_, i, j);
    if (p_.alibi_slopes) {
      const double slope = core::load(*p_.alibi_slopes, s_.index, head_, 0, 0);
      score.value -= slope * std::abs(static_cast<double>(p_.distance(s_, i, j)));
    }
    if (function_ != nullptr) {
      score.before_function = score.value;
      const auto [value, slope] = function_->at(i, j, score.value);
      score.value = value, score.of_function = slope;
    }
    return score;
  }

  /// Returns 0 for a dropped entry and 1/(1-p) for a kept one.
  [[nodiscard]] double dropout_factor(std::int64_t i, std::int64_t j) const {
    if (p_.dropout_p == 0) return 1.0;
    return dropout_.keeps(p_.row_position(i), p_.key_position(j)) ? 1.0 / (1.0 - p_.dropout_p) : 0.0;
  }

 private:
  const Problem& p_;
  const Sequence s_;
  std::int64_t head_;
  WindowMask window_;
  core::HeadTiles tiles_;
  DropMask dropout_;
  std::unique_ptr<ReferenceFunction> function_;
};

/// Logarithm of a sum, stored as top + log_sum. The two terms stay separate because adding them could lose log_sum to
/// rounding if `top` is large. To divide exp(x) by the sum, compute exponential(x - top - log_sum); this is precise if
/// x is near top.
struct LogOfSum {
  double top = 0;
  double log_sum = 0;
};

/// The scores of one row.
class RowScores {
 public:
  RowScores(const Problem& p, const Scores& scores, const Rows& q, const Rows& k, std::int64_t i)
      : p_(p), scores_(scores), q_(q), k_(k), i_(i) {
    // A NaN in q makes every product of the row NaN.
    has_nan_ = std::any_of(q.row(i), q.row(i) + p.head_dim, [](double x) { return std::isnan(x); });
  }

  [[nodiscard]] KeyRange keys() const { return scores_.keys(i_); }

  /// Returns the score of a key, or -inf if masked.
  [[nodiscard]] Score at(std::int64_t j) const {
    if (scores_.masked(i_, j)) return {-kInfinity, 1.0};
    return scores_.at(i_, j, has_nan_ ? kNaN : dot(q_.row(i_), k_.row(j), p_.head_dim));
  }

  /// Returns log(sum_j exp(s_ij - lse_i) + exp(sink - lse_i)), where sink is -inf if there is none. The result is 0 for
  /// an exact lse. If all keys have the same large score, the rounding error of lse exceeds the logarithm of the number
  /// of keys, and the result is not 0. If the result is larger than the rounding of lse can explain, lse includes other
  /// keys too, and the function returns 0.
  [[nodiscard]] LogOfSum log_of_sum(double sink, double lse) const {
    if (p_.placement() != nullptr || !(std::abs(lse) >= kCoarseLse)) return {};
    const KeyRange range = keys();
    double top = sink - lse;
    for (std::int64_t j = range.begin; j < range.end; ++j) top = std::max(top, at(j).value - lse);
    // All terms are divided by the largest term, because the error of lse may exceed the range of exp.
    double sum = exponential(sink - lse - top);
    for (std::int64_t j = range.begin; j < range.end; ++j) sum += exponential(at(j).value - lse - top);
    const double largest_rounding = p_.lse->dtype == DType::kF64 ? 0x1p-51 : kLargestLseError;
    const double log_sum = std::log(sum);
    return std::abs(top + log_sum) <= largest_rounding * std::abs(lse) ? LogOfSum{top, log_sum} : LogOfSum{};
  }

 private:
  const Problem& p_;
  const Scores& scores_;
  const Rows& q_;
  const Rows& k_;
  std::int64_t i_;
  bool has_nan_;
};

/// Calls visit(i, j, ScoreGradient) for the gradient of every visible entry of one query head, in order of i, then j.
template <class Visit>
void for_each_score_gradient(const Problem& p, const Sequence& s, std::int64_t head, const Rows& q, const Rows& k,
                             const Rows& v, const Rows& dout, Visit visit) {
  const Scores scores(p, s, head);
  const Rows o(core::q_matrix(p.o, s, head));
  const Rows lse(core::q_matrix(*p.lse, s, head));
  const double sink = p.sinks ? core::load(*p.sinks, s.index, head, 0, 0) : -kInfinity;
  InterruptPoint interrupt;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const double lse_i = *lse.row(i);
    if (lse_i == -kInfinity) continue;  // the row saw no key
    const double dlse_i = p.dlse ? core::load(core::q_matrix(*p.dlse, s, head), i, 0) : 0.0;
    const double delta = p.delta() != nullptr ? core::load(core::q_matrix(*p.delta(), s, head), i, 0)
                                              : dot(dout.row(i), o.row(i), p.head_dim_v) - dlse_i;
    const RowScores row(p, scores, q, k, i);
    const KeyRange range = row.keys();
    const LogOfSum sum = row.log_of_sum(sink, lse_i);
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const Score score = row.at(j);
      if (score.value == -kInfinity) continue;
      const double p_ij = exponential(score.value - lse_i - sum.top - sum.log_sum);
      const double factor = scores.dropout_factor(i, j);
      const bool reads_v = factor != 0 && !std::isnan(p_ij);
      const double dp_ij = reads_v ? factor * dot(dout.row(i), v.row(j), p.head_dim_v) : 0.0;
      const double ds = p_ij * (dp_ij - delta);
      // If ds is 0, the derivative of the custom function may be infinite or NaN.
      const double ds_before = ds == 0 ? 0.0 : ds * score.of_function;
      // A dropped entry reads no value and adds nothing to dv, even if p_ij is NaN.
      visit(i, j, ScoreGradient{factor == 0 ? 0.0 : factor * p_ij, ds_before, score.slope, ds, score.before_function});
    }
    interrupt.after(range.end - range.begin);
  }
}

}  // namespace attend::cpu::reference
