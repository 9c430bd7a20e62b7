#include "standard.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/elements.hpp"

namespace attend::cli {
namespace {

using core::Matrix;
using core::Problem;
using core::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kF16:
      return core::to_float(core::to_half(x));
    case DType::kBF16:
      return core::to_float(core::to_bfloat16(x));
    default:
      return x;
  }
}

/// A head's rows as float32.
struct Rows {
  explicit Rows(const Matrix& m) : Rows(m.rows, m.cols) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) row(r)[c] = static_cast<float>(core::load(m, r, c));
    }
  }
  Rows(std::int64_t rows, std::int64_t columns) : cols(columns), values(static_cast<std::size_t>(rows * columns)) {}

  [[nodiscard]] float* row(std::int64_t r) { return values.data() + r * cols; }
  [[nodiscard]] const float* row(std::int64_t r) const { return values.data() + r * cols; }

  void store_to(const Matrix& m) const {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) core::store(m, r, c, row(r)[c]);
    }
  }

  std::int64_t cols;
  std::vector<float> values;
};

float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float* to, float factor, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

struct Score {
  float value;  // -inf: masked
  float slope;  // derivative of the soft cap
};

Score score_of(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t i, std::int64_t j, float q_dot_k) {
  if (p.mask && core::load(*p.mask, s.batch, head, i, j) == 0) return {-kInfinity, 0};
  Score score = {static_cast<float>(p.scale) * q_dot_k, 1};
  if (p.softcap > 0) {
    const auto cap = static_cast<float>(p.softcap);
    const float t = std::tanh(score.value / cap);
    score = {cap * t, 1 - t * t};
  }
  if (p.bias) score.value += static_cast<float>(core::load(*p.bias, s.batch, head, i, j));
  if (p.alibi_slopes) {
    const auto slope = static_cast<float>(core::load(*p.alibi_slopes, s.index, head, 0, 0));
    score.value -= slope * static_cast<float>(std::abs(i + s.seqlen_k - s.seqlen_q - j));
  }
  return score;
}

/// 0 for a dropped entry, 1/(1-p) for a kept one.
float dropout_factor(const Problem& p, const DropoutMask& dropout, std::int64_t i, std::int64_t j) {
  if (p.dropout_p == 0) return 1;
  return dropout.keeps(i, j) ? static_cast<float>(1 / (1 - p.dropout_p)) : 0;
}

}  // namespace

void standard_forward_head(const Problem& p, const Sequence& s, std::int64_t head) {
  const std::int64_t key_head = head / p.heads_per_group();
  const Rows q(core::q_matrix(p.q, s, head));
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  const DropoutMask dropout = p.dropout(s, head);
  Rows o(s.seqlen_q, p.head_dim_v);
  std::vector<float> row(static_cast<std::size_t>(s.seqlen_k));
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange keys = p.window(s).row(i);
    float row_max = -kInfinity;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      row[j] = score_of(p, s, head, i, j, dot(q.row(i), k.row(j), p.head_dim)).value;
      row_max = std::max(row_max, row[j]);
    }
    float row_sum = 0;
    for (std::int64_t j = keys.begin; j < keys.end && row_max != -kInfinity; ++j) row_sum += std::exp(row[j] - row_max);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (row[j] == -kInfinity) continue;
      const float probability = std::exp(row[j] - row_max) / row_sum * dropout_factor(p, dropout, i, j);
      add_scaled(o.row(i), round_to(p.q.dtype, probability), v.row(j), p.head_dim_v);
    }
    const float lse = row_max == -kInfinity ? -kInfinity : row_max + std::log(row_sum);
    core::store(core::q_matrix(*p.lse, s, head), i, 0, lse);
  }
  o.store_to(core::q_matrix(p.o, s, head));
}

void standard_backward_group(const Problem& p, const Sequence& s, std::int64_t key_head) {
  const Rows k(core::k_matrix(p.k, s, key_head));
  const Rows v(core::k_matrix(p.v, s, key_head));
  Rows dk(s.seqlen_k, p.head_dim);
  Rows dv(s.seqlen_k, p.head_dim_v);
  for (std::int64_t in_group = 0; in_group < p.heads_per_group(); ++in_group) {
    const std::int64_t head = key_head * p.heads_per_group() + in_group;
    const Rows q(core::q_matrix(p.q, s, head));
    const Rows o(core::q_matrix(p.o, s, head));
    const Rows lse(core::q_matrix(*p.lse, s, head));
    const Rows dout(core::q_matrix(p.dout, s, head));
    const DropoutMask dropout = p.dropout(s, head);
    Rows dq(s.seqlen_q, p.head_dim);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      const float delta = dot(dout.row(i), o.row(i), p.head_dim_v);
      const KeyRange keys = p.window(s).row(i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        const Score score = score_of(p, s, head, i, j, dot(q.row(i), k.row(j), p.head_dim));
        if (score.value == -kInfinity) continue;
        const float probability = std::exp(score.value - *lse.row(i));
        const float factor = dropout_factor(p, dropout, i, j);
        const float dp = factor * dot(dout.row(i), v.row(j), p.head_dim_v);
        const float ds = round_to(p.q.dtype, probability * (dp - delta) * score.slope);
        add_scaled(dv.row(j), round_to(p.q.dtype, factor * probability), dout.row(i), p.head_dim_v);
        add_scaled(dq.row(i), static_cast<float>(p.scale) * ds, k.row(j), p.head_dim);
        add_scaled(dk.row(j), static_cast<float>(p.scale) * ds, q.row(i), p.head_dim);
      }
    }
    dq.store_to(core::q_matrix(p.dq, s, head));
  }
  dk.store_to(core::k_matrix(p.dk, s, key_head));
  dv.store_to(core::k_matrix(p.dv, s, key_head));
}

}  // namespace attend::cli
