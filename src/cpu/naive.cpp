// Rung 00 of the ladder, `cpu_naive`: the definition of attention as a textbook loop, float32, one thread.
//
// This backend is the baseline for all later rungs. It makes three passes over each row of scores. It computes the
// scores and their maximum, then the exponentials and their sum, and then the weighted sum of the values. There are no
// tiles, and only the compiler uses SIMD. Every key and value is read again for every row. Supports f32, full and
// causal masks, any head_dim, GQA, seqlen_q != seqlen_k, forward and backward, and a score function without gradients
// of its captures. Refuses all other options.
//
// Run: attend run --compute cpu_naive --mode both --data data/B2_H8_S512_D64 --check
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/score_options.hpp"
#include "cpu/backends.hpp"
#include "cpu/function_rows.hpp"
#include "cpu/parallel.hpp"

namespace attend::cpu {
namespace {

using core::Matrix;
using core::Problem;
using core::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float* row(const Matrix& m, std::int64_t r) {
  return static_cast<float*>(m.data) + r * m.row_stride;
}

float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float* to, float factor, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

void zero(const Matrix& m) {
  for (std::int64_t r = 0; r < m.rows; ++r) std::fill_n(row(m, r), m.cols, 0.0F);
}

/// Computes the scores of one row at a time, and the derivatives of a score function.
class NaiveRows {
 public:
  NaiveRows(const Problem& p, const Sequence& s, std::int64_t head)
      : scale_(static_cast<float>(p.scale)),
        q_(core::q_matrix(p.q, s, head)),
        k_(core::k_matrix(p.k, s, head / p.heads_per_group())),
        scores_(static_cast<std::size_t>(s.seqlen_k)),
        slopes_(scores_.size(), 1.0F) {
    if (p.custom_score != nullptr) function_.emplace(p, s, head);
  }

  /// Returns the scores of row i; element j belongs to key j.
  [[nodiscard]] float* compute(std::int64_t i, const KeyRange& keys) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) scores_[j] = scale_ * dot(row(q_, i), row(k_, j), q_.cols);
    if (function_ && !keys.empty()) {
      function_->apply(i, keys.begin, keys.end - keys.begin, scores_.data() + keys.begin, slopes_.data() + keys.begin);
    }
    return scores_.data();
  }
  /// Returns the derivatives that the last compute() wrote.
  [[nodiscard]] const float* slopes() const { return slopes_.data(); }

 private:
  float scale_;
  Matrix q_, k_;
  std::vector<float> scores_, slopes_;
  std::optional<FunctionRows> function_;
};

void forward_head(const Problem& p, const Sequence& s, std::int64_t head) {
  const Matrix v = core::k_matrix(p.v, s, head / p.heads_per_group());
  const Matrix o = core::q_matrix(p.o, s, head);
  NaiveRows rows(p, s, head);
  zero(o);
  InterruptPoint interrupt;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = p.window(s).row(i);
    float* scores = rows.compute(i, keys);
    float row_max = -kInfinity;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) row_max = std::max(row_max, scores[j]);
    const bool sees_none =
        std::all_of(scores + keys.begin, scores + keys.end, [](float score) { return score == -kInfinity; });
    float row_sum = 0;
    for (std::int64_t j = keys.begin; j < keys.end && !sees_none; ++j) {
      if (scores[j] == -kInfinity) continue;
      scores[j] = std::exp(scores[j] - row_max);
      row_sum += scores[j];
    }
    for (std::int64_t j = keys.begin; j < keys.end && !sees_none; ++j) {
      if (scores[j] == -kInfinity) continue;  // the value of a hidden key may be NaN
      add_scaled(row(o, i), scores[j] / row_sum, row(v, j), v.cols);
    }
    if (p.lse) *row(core::q_matrix(*p.lse, s, head), i) = sees_none ? -kInfinity : row_max + std::log(row_sum);
    interrupt.after(keys.end - keys.begin);
  }
}

void backward_head(const Problem& p, const Sequence& s, std::int64_t head) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Matrix q = core::q_matrix(p.q, s, head);
  const Matrix k = core::k_matrix(p.k, s, key_head);
  const Matrix v = core::k_matrix(p.v, s, key_head);
  const Matrix o = core::q_matrix(p.o, s, head);
  const Matrix dout = core::q_matrix(p.dout, s, head);
  const Matrix lse = core::q_matrix(*p.lse, s, head);
  const Matrix dq = core::q_matrix(p.dq, s, head);
  const Matrix dk = core::k_matrix(p.dk, s, key_head);
  const Matrix dv = core::k_matrix(p.dv, s, key_head);
  const auto scale = static_cast<float>(p.scale);
  NaiveRows rows(p, s, head);
  zero(dq);
  InterruptPoint interrupt;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = p.window(s).row(i);
    const float dlse = p.dlse ? *row(core::q_matrix(*p.dlse, s, head), i) : 0.0F;
    const float delta = dot(row(dout, i), row(o, i), o.cols) - dlse;
    const float* scores = rows.compute(i, keys);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (scores[j] == -kInfinity) continue;  // a score function hides this key
      const float p_ij = std::exp(scores[j] - *row(lse, i));
      const float ds = p_ij * (dot(row(dout, i), row(v, j), v.cols) - delta);
      // The derivative of the function may be infinite for an entry whose ds is 0.
      const float ds_ij = ds == 0 ? 0.0F : ds * rows.slopes()[j];
      add_scaled(row(dv, j), p_ij, row(dout, i), v.cols);
      add_scaled(row(dq, i), scale * ds_ij, row(k, j), k.cols);
      add_scaled(row(dk, j), scale * ds_ij, row(q, i), q.cols);
    }
    interrupt.after(keys.end - keys.begin);
  }
}

void forward(const Problem& p, Stream /*stream*/) {
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) forward_head(p, p.sequence(index), head);
  }
}

void backward(const Problem& p, Stream /*stream*/) {
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    for (std::int64_t key_head = 0; key_head < p.num_heads_k; ++key_head) {
      zero(core::k_matrix(p.dk, s, key_head));
      zero(core::k_matrix(p.dv, s, key_head));
    }
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) backward_head(p, s, head);
  }
}

std::optional<std::string> unsupported(const Problem& p) {
  if (auto lack = core::custom_score_lack(p, "cpu_naive", /*runs_programs=*/true)) return lack;
  const auto lacks = [](auto name, const auto& value, auto allowed) {
    return fmt::format("{}: {}, compute 'cpu_naive' allows {}", name, value, allowed);
  };
  for (const core::ScoreNumber& row : core::kScoreNumbers) {
    if (p.*row.value != 0) return lacks(row.name, p.*row.value, "0");
  }
  if (p.window_left >= 0) return lacks("window_left", p.window_left, "-1");
  if (p.window_right > 0) return lacks("window_right", p.window_right, "-1 or causal");
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (p.*row.tensor) return lacks(row.name, "given", "none");
  }
  if (p.block_mask != nullptr) return lacks("block_mask", "given", "none");
  if (!p.captured_gradients.empty()) return lacks("captures", "given", "none");
  if (p.varlen) return lacks("varlen", "given", "none");
  return core::dtype_lack(p, "cpu_naive", std::array{DType::kF32});
}

}  // namespace

const core::Backend& naive_backend() {
  static const core::Backend kBackend = {.name = "cpu_naive",
                                         .description = "rung 00: the textbook loop, float32, one thread",
                                         .device = DeviceType::kCPU,
                                         .forward = forward,
                                         .backward = backward,
                                         .in_auto = false,
                                         .unsupported = unsupported};
  return kBackend;
}

}  // namespace attend::cpu
