// A second implementation of attention, written from the mathematics and independent of the library. It stores full
// matrices, including a boolean visibility matrix. Its softmax does not subtract the maximum, because the exponent
// range of long double is wide enough. Its backward uses the explicit Jacobian of the softmax, J = diag(p) - p p^T. A
// sink adds one entry to the softmax. This entry has a row in J, but no value row in v.
//
// `Real` is long double for values, or Dual for directional derivatives.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// A number with its derivative along one direction, for forward-mode differentiation.
struct Dual {
  long double value = 0;
  long double tangent = 0;
  Dual() = default;
  Dual(long double v) : value(v) {}  // NOLINT: constants convert
  Dual(long double v, long double t) : value(v), tangent(t) {}
  friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.tangent + b.tangent}; }
  friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.tangent - b.tangent}; }
  friend Dual operator*(Dual a, Dual b) { return {a.value * b.value, a.value * b.tangent + a.tangent * b.value}; }
  friend Dual operator/(Dual a, Dual b) {
    return {a.value / b.value, (a.tangent * b.value - a.value * b.tangent) / (b.value * b.value)};
  }
};
inline Dual exp(Dual x) {
  return {std::exp(x.value), std::exp(x.value) * x.tangent};
}
inline Dual log(Dual x) {
  return {std::log(x.value), x.tangent / x.value};
}
inline Dual tanh(Dual x) {
  const long double t = std::tanh(x.value);
  return {t, (1 - t * t) * x.tangent};
}

template <class Real>
using Grid = std::vector<std::vector<Real>>;  // [row][col]

/// One query head of one sequence with its key head. bias, visible and keep have shape (seqlen_q, seqlen_k).
template <class Real>
struct DenseHead {
  Grid<Real> q, k, v, bias;
  Grid<bool> visible;
  Grid<long double> constant;  // ALiBi term, added to the score
  Grid<long double> keep;      // dropout factor: 0 or 1/(1-p)
  long double scale = 1;
  long double softcap = 0;
  std::optional<Real> sink = {};  // not set if the head has no sink or its sink is -inf
};

template <class Real>
struct DenseForward {
  Grid<Real> o, p, raw;  // raw holds scale <q, k> before the soft cap
  std::vector<Real> lse;
  std::vector<bool> empty;   // marks rows without a visible key and without a sink; the lse of these rows is not set
  std::vector<Real> p_sink;  // probability of the sink, one per row
};

template <class Real>
DenseForward<Real> dense_forward(const DenseHead<Real>& h) {
  using std::exp, std::log, std::tanh;
  const std::size_t rows = h.q.size(), keys = h.k.size(), cols = keys == 0 ? 0 : h.v[0].size();
  DenseForward<Real> f = {Grid<Real>(rows, std::vector<Real>(cols)), Grid<Real>(rows, std::vector<Real>(keys)),
                          Grid<Real>(rows, std::vector<Real>(keys)), std::vector<Real>(rows),
                          std::vector<bool>(rows, !h.sink),          std::vector<Real>(rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    Real sum = h.sink ? exp(*h.sink) : Real(0);
    for (std::size_t j = 0; j < keys; ++j) {
      if (!h.visible[i][j]) continue;
      Real dot = 0;
      for (std::size_t c = 0; c < h.q[i].size(); ++c) dot = dot + h.q[i][c] * h.k[j][c];
      f.raw[i][j] = Real(h.scale) * dot;
      const Real capped = h.softcap > 0 ? Real(h.softcap) * tanh(f.raw[i][j] / Real(h.softcap)) : f.raw[i][j];
      f.p[i][j] = exp(capped + h.bias[i][j] + Real(h.constant[i][j]));
      sum = sum + f.p[i][j];
      f.empty[i] = false;
    }
    if (f.empty[i]) continue;
    f.lse[i] = log(sum);
    if (h.sink) f.p_sink[i] = exp(*h.sink) / sum;
    for (std::size_t j = 0; j < keys; ++j) {
      f.p[i][j] = f.p[i][j] / sum;
      for (std::size_t c = 0; c < cols; ++c) f.o[i][c] = f.o[i][c] + f.p[i][j] * Real(h.keep[i][j]) * h.v[j][c];
    }
  }
  return f;
}

struct DenseGradients {
  // ds is the gradient of the score after the soft cap, which equals the bias gradient.
  Grid<long double> dq, dk, dv, ds;
  long double dsink = 0;
};

/// Returns the gradients of sum(dout * o) + sum(dlse * lse).
DenseGradients dense_backward(const DenseHead<long double>& h, const Grid<long double>& dout,
                              const std::vector<long double>& dlse);

/// Returns one head of one sequence of the inputs. Computes positions in the tensors without functions of the library.
[[nodiscard]] DenseHead<long double> dense_head(const Inputs& in, std::int64_t sequence, std::int64_t head);

/// Returns rows [first, first + count) of one (batch, head) of a tensor.
[[nodiscard]] Grid<long double> rows_of(const TensorBuffer& t, std::int64_t batch, std::int64_t head,
                                        std::int64_t first, std::int64_t count);

/// Position of a sequence in the tensors.
struct Span {
  std::int64_t batch, q_first, q_count, k_first, k_count;
};
[[nodiscard]] Span span_of(const AttentionCase& c, std::int64_t sequence);

/// Returns whether query row i sees key j under the causal and window options.
[[nodiscard]] bool visible_by_rule(bool causal, std::int64_t window_left, std::int64_t window_right,
                                   std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t i, std::int64_t j);

}  // namespace attend::test
