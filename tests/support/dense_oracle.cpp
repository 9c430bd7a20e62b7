#include "support/dense_oracle.hpp"

#include <numeric>

#include "kernels/attention/philox.cuh"

namespace attend::test {

bool visible_by_rule(bool causal, std::int64_t window_left, std::int64_t window_right, std::int64_t seqlen_q,
                     std::int64_t seqlen_k, std::int64_t i, std::int64_t j) {
  // Distance of the key from the diagonal, which aligns the ends of both sequences. Positive if the key comes after the
  // query.
  const std::int64_t ahead = (j - (seqlen_k - 1)) - (i - (seqlen_q - 1));
  if (causal && ahead > 0) return false;
  if (window_right >= 0 && ahead > window_right) return false;
  return !(window_left >= 0 && -ahead > window_left);
}

Span span_of(const AttentionCase& c, std::int64_t sequence) {
  if (!c.packed()) return {sequence, 0, c.seqlen_q, 0, c.seqlen_k};
  const auto before = [sequence](const std::vector<std::int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.begin() + sequence, std::int64_t{0});
  };
  return {0, before(c.varlen_q), c.varlen_q[sequence], before(c.varlen_k), c.varlen_k[sequence]};
}

Grid<long double> rows_of(const TensorBuffer& t, std::int64_t batch, std::int64_t head, std::int64_t first,
                          std::int64_t count) {
  Grid<long double> rows(count, std::vector<long double>(t.shape()[3]));
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c = 0; c < t.shape()[3]; ++c) rows[r][c] = t.at(batch, head, first + r, c);
  }
  return rows;
}

DenseHead<long double> dense_head(const Inputs& in, std::int64_t sequence, std::int64_t head) {
  const AttentionCase& c = in.options;
  const Span at = span_of(c, sequence);
  const std::int64_t key_head = head * c.heads_k / c.heads_q;
  const Params params = in.params("reference");
  DenseHead<long double> h;
  h.q = rows_of(in.q, at.batch, head, at.q_first, at.q_count);
  h.k = rows_of(in.k, at.batch, key_head, at.k_first, at.k_count);
  h.v = rows_of(in.v, at.batch, key_head, at.k_first, at.k_count);
  h.scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  h.softcap = c.softcap;
  if (in.sinks) {
    const double sink = in.sinks->at(c.sinks_per_sequence ? sequence : 0, head, 0, 0);
    if (sink != -INFINITY) h.sink = sink;
  }
  h.bias = Grid<long double>(at.q_count, std::vector<long double>(at.k_count));
  h.constant = h.bias;
  h.keep = Grid<long double>(at.q_count, std::vector<long double>(at.k_count, 1));
  h.visible = Grid<bool>(at.q_count, std::vector<bool>(at.k_count));
  const auto broadcast = [&](const TensorBuffer& t, std::int64_t i, std::int64_t j) {
    const Shape& full = t.shape();
    return t.at(full[0] == 1 ? 0 : sequence, full[1] == 1 ? 0 : head, full[2] == 1 ? 0 : i, j);
  };
  const bool in_memory = params.philox_state != nullptr;
  const DropMask dropout =
      DropMask::make(in_memory ? params.philox_state[0] : params.seed,
                     in_memory ? params.philox_state[1] : params.offset, sequence * c.heads_q + head, c.dropout_p);
  for (std::int64_t i = 0; i < at.q_count; ++i) {
    for (std::int64_t j = 0; j < at.k_count; ++j) {
      h.visible[i][j] = visible_by_rule(c.causal, c.window_left, c.window_right, at.q_count, at.k_count, i, j) &&
                        (!in.mask || broadcast(*in.mask, i, j) != 0);
      if (in.bias) h.bias[i][j] = broadcast(*in.bias, i, j);
      if (in.slopes) {
        const std::int64_t distance = std::abs((at.k_count - j) - (at.q_count - i));
        const double slope = in.slopes->at(c.alibi_per_sequence ? sequence : 0, head, 0, 0);
        h.constant[i][j] = -static_cast<long double>(slope) * static_cast<long double>(distance);
      }
      if (c.dropout_p > 0) h.keep[i][j] = dropout.keeps(i, j) ? 1 / (1 - static_cast<long double>(c.dropout_p)) : 0;
    }
  }
  return h;
}

DenseGradients dense_backward(const DenseHead<long double>& h, const Grid<long double>& dout,
                              const std::vector<long double>& dlse) {
  const DenseForward<long double> f = dense_forward(h);
  const std::size_t rows = h.q.size(), keys = h.k.size();
  const auto zeros = [](const Grid<long double>& like) {
    Grid<long double> z = like;
    for (auto& row : z) std::fill(row.begin(), row.end(), 0.0L);
    return z;
  };
  DenseGradients g = {zeros(h.q), zeros(h.k), zeros(h.v), zeros(h.bias)};
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<long double> dp(keys);
    for (std::size_t j = 0; j < keys; ++j) {
      for (std::size_t c = 0; c < dout[i].size(); ++c) {
        dp[j] += dout[i][c] * h.keep[i][j] * h.v[j][c];
        g.dv[j][c] += f.p[i][j] * h.keep[i][j] * dout[i][c];
      }
    }
    for (std::size_t b = 0; b < keys; ++b) g.dsink -= f.p_sink[i] * f.p[i][b] * dp[b];
    g.dsink += dlse[i] * f.p_sink[i];
    for (std::size_t a = 0; a < keys; ++a) {
      for (std::size_t b = 0; b < keys; ++b) {
        g.ds[i][a] += ((a == b ? f.p[i][a] : 0) - f.p[i][a] * f.p[i][b]) * dp[b];
      }
      g.ds[i][a] += dlse[i] * f.p[i][a];
      if (!h.visible[i][a]) continue;
      const long double cosh = h.softcap > 0 ? std::cosh(f.raw[i][a] / h.softcap) : 1;
      // Derivative of the soft cap: d tanh(x) / dx = 1 / cosh(x)^2.
      const long double draw = g.ds[i][a] / (cosh * cosh);
      for (std::size_t c = 0; c < h.q[i].size(); ++c) {
        g.dq[i][c] += h.scale * draw * h.k[a][c];
        g.dk[a][c] += h.scale * draw * h.q[i][c];
      }
    }
  }
  return g;
}

}  // namespace attend::test
