#include "support/standard.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/elements.hpp"
#include "core/problem.hpp"
#include "support/standard_sums.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

using core::Problem;
using core::round_to;
using core::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kF32Roundoff = 0x1p-24;

StandardTensor make_result(const Shape& shape) {
  const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
  return {shape, std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
}

/// Copies the result of one head to the rows of the full tensor that start at (batch, head, first_row).
void place(StandardTensor& t, const Accumulator& a, DType dtype, std::int64_t batch, std::int64_t head,
           std::int64_t first_row) {
  const double u = unit_roundoff(dtype);
  for (std::int64_t r = 0; r < a.value.rows; ++r) {
    for (std::int64_t c = 0; c < a.value.cols; ++c) {
      const auto at =
          static_cast<std::size_t>(((batch * t.shape[1] + head) * t.shape[2] + first_row + r) * t.shape[3] + c);
      t.value[at] = round_to(dtype, a.value.at(r, c));
      t.walk[at] = u * std::sqrt(a.walk.at(r, c));
      t.bound[at] = kF32Roundoff * a.bound.at(r, c);
    }
  }
}

/// Score matrix S of one head, with the factors needed for its error bounds and its gradient.
struct ScoreMatrix {
  ScoreMatrix(const Problem& p, const Sequence& s, std::int64_t head, const Floats& q, const Floats& k)
      : value(q.rows, k.rows, -kInfinity),
        magnitude(q.rows, k.rows),
        slope(q.rows, k.rows, 1),
        keep(q.rows, k.rows, 1) {
    const DropMask dropout = p.dropout(s, head);
    const float kept = static_cast<float>(1 / (1 - p.dropout_p));
    DotsOfRow dots(k);
    for (std::int64_t i = 0; i < q.rows; ++i) {
      dots.begin(q.row(i));
      const KeyRange range = p.window(s).row(i);
      for (std::int64_t j = range.begin; j < range.end; ++j) {
        if (p.mask && core::load(*p.mask, s.batch, head, i, j) == 0) continue;
        set(p, s, head, i, j, dots.at(j));
        if (p.dropout_p > 0) keep.at(i, j) = dropout.keeps(i, j) ? kept : 0;
      }
    }
  }

  void set(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t i, std::int64_t j, const Dot& dot) {
    const auto scale = static_cast<float>(p.scale);
    const auto cap = static_cast<float>(p.transform_cap);
    float score = scale * dot.value;
    float size = std::abs(scale) * dot.magnitude;
    if (cap > 0) {
      const float t = std::tanh(score / cap);
      score = cap * t;
      slope.at(i, j) = 1 - t * t;
      size = slope.at(i, j) * size + 2 * cap;  // remaining error of the product, plus the rounding error of tanh
    }
    if (p.bias) {
      const auto bias = static_cast<float>(core::load(*p.bias, s.batch, head, i, j));
      score += bias;
      size += std::abs(bias);
    }
    if (p.alibi_slopes) {
      const auto distance = static_cast<float>(std::abs(i + s.seqlen_k - s.seqlen_q - j));
      const float alibi = static_cast<float>(core::load(*p.alibi_slopes, s.index, head, 0, 0)) * distance;
      score -= alibi;
      size += std::abs(alibi);
    }
    value.at(i, j) = score;
    magnitude.at(i, j) = size;
  }

  Floats value, magnitude;
  Floats slope;  // derivative of the soft cap at each score
  Floats keep;   // dropout factor: 0 or 1/(1-p)
};

struct HeadData {
  HeadData(const Problem& p, const Sequence& s_, std::int64_t head_)
      : s(s_),
        head(head_),
        key_head(head_ / p.heads_per_group()),
        q(core::q_matrix(p.q, s_, head_)),
        k(core::k_matrix(p.k, s_, key_head)),
        v(core::k_matrix(p.v, s_, key_head)),
        dout(core::q_matrix(p.dout, s_, head_)),
        scores(p, s_, head_, q, k),
        lse(q.rows, 1),
        largest(q.rows, 1),
        o(q.rows, v.cols),
        sink(p.sinks ? static_cast<float>(core::load(*p.sinks, s_.index, head_, 0, 0)) : -kInfinity) {}

  Sequence s;
  std::int64_t head;
  std::int64_t key_head;
  Floats q, k, v, dout;
  ScoreMatrix scores;
  Floats lse;
  Floats largest;  // largest magnitude among the terms of a row's lse
  Floats o;        // already rounded to the dtype
  float sink;      // -inf means no sink
};

void forward_head(const Problem& p, HeadData& h, Standard& out) {
  const DType dtype = p.q.dtype;
  Accumulator o(h.q.rows, h.v.cols);
  Accumulator lse(h.q.rows, 1);
  for (std::int64_t i = 0; i < h.q.rows; ++i) {
    const float* s = h.scores.value.row(i);
    const float row_max = h.k.rows == 0 ? h.sink : std::max(*std::max_element(s, s + h.k.rows), h.sink);
    const bool has_sink = h.sink != -kInfinity;
    // The comparison with row_max also handles two equal infinities.
    float row_sum = !has_sink ? 0 : h.sink == row_max ? 1 : std::exp(h.sink - row_max);
    float largest = has_sink ? std::abs(h.sink) : 0;
    for (std::int64_t j = 0; j < h.k.rows && row_max != -kInfinity; ++j) {
      row_sum += std::exp(s[j] - row_max);
      if (s[j] != -kInfinity) largest = std::max(largest, h.scores.magnitude.at(i, j));
    }
    h.lse.at(i, 0) = row_sum == 0 ? -kInfinity : row_max + std::log(row_sum);
    lse.value.at(i, 0) = h.lse.at(i, 0);
    h.largest.at(i, 0) = largest;
    const float columns = is_half(dtype) ? static_cast<float>(h.q.cols) / kLseColumns : 0;
    lse.bound.at(i, 0) = largest * std::max(1.0f, columns);
    // An implementation may first round the lse of the keys to f32, and then merge the sink into this lse. This adds
    // one rounding.
    const float merging = has_sink && h.sink != kInfinity ? std::abs(h.lse.at(i, 0)) : 0;
    for (std::int64_t j = 0; j < h.k.rows; ++j) {
      // Skips v of dropped keys, because 0 * NaN is NaN.
      if (s[j] == -kInfinity || h.scores.keep.at(i, j) == 0) continue;
      const float prob = std::exp(s[j] - row_max) / row_sum * h.scores.keep.at(i, j);
      const float step = std::max(prob, static_cast<float>(min_normal(dtype)));
      o.add(i, round_to(dtype, prob), step, prob * (1 + h.scores.magnitude.at(i, j) + merging), h.v.row(j));
    }
    for (std::int64_t c = 0; c < h.v.cols; ++c) h.o.at(i, c) = round_to(dtype, o.value.at(i, c));
  }
  place(out.o, o, dtype, h.s.batch, h.head, h.s.q_begin);
  place(out.lse, lse, DType::kF32, h.s.batch, h.head, h.s.q_begin);
}

/// Accumulates the gradient of the bias over all heads, in the shape of the bias.
struct BiasGradient {
  explicit BiasGradient(const Problem& p) : shape(p.dbias->shape), sums(shape[0] * shape[1] * shape[2], shape[3]) {}

  void add(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j, float ds, float step, float error) {
    const std::int64_t row =
        ((shape[0] == 1 ? 0 : batch) * shape[1] + (shape[1] == 1 ? 0 : head)) * shape[2] + (shape[2] == 1 ? 0 : i);
    sums.value.at(row, j) += ds;
    sums.walk.at(row, j) += step * step;
    sums.bound.at(row, j) += error;
  }

  Shape shape;
  Accumulator sums;
};

/// Accumulates the gradients of the sinks over all heads, as a matrix with one column.
struct SinkGradient {
  explicit SinkGradient(const Problem& p)
      : shape(p.dsinks->shape),
        alike(p.dout.stride[2] == 0),
        sums(shape[0] * shape[1], 1),
        common(shape[0] * shape[1], 1) {}

  /// Adds one row's term p_sink (dlse - delta). `step` is the rounding error of delta in units of the dtype's roundoff.
  void add(const HeadData& h, std::int64_t i, const Dot& delta, float dlse, float step) {
    const std::int64_t entry = (shape[0] == 1 ? 0 : h.s.index) * shape[1] + h.head;
    const float lse = h.lse.at(i, 0);
    if (h.sink == -kInfinity) return;
    const float p_sink = std::exp(h.sink - lse);
    sums.value.at(entry, 0) += p_sink * (dlse - delta.value);
    // If all rows of dout are equal, equal rows have equal rounding errors. These errors add up instead of averaging
    // out.
    (alike ? common : sums.walk).at(entry, 0) += alike ? p_sink * step : p_sink * step * p_sink * step;
    sums.bound.at(entry, 0) += p_sink * (delta.magnitude + std::abs(dlse)) * (1 + h.largest.at(i, 0) + std::abs(lse));
  }

  [[nodiscard]] StandardTensor result(DType dtype) {
    StandardTensor all = make_result({1, 1, sums.value.rows, 1});
    for (std::int64_t entry = 0; entry < sums.value.rows; ++entry) {
      const float walk = static_cast<float>(kSinkWalk) * (std::sqrt(sums.walk.at(entry, 0)) + common.at(entry, 0));
      sums.walk.at(entry, 0) = walk * walk;
    }
    place(all, sums, dtype, 0, 0, 0);
    return all;
  }

  Shape shape;
  bool alike;  // every row of dout is the same memory (stride 0)
  Accumulator sums;
  Floats common;
};

/// Gradients of optional inputs. A null pointer means that the gradient is not requested.
struct OptionGradients {
  BiasGradient* dbias;
  SinkGradient* dsinks;
};

void backward_head(const Problem& p, const HeadData& h, KeptP kept, Accumulator& dq, Accumulator& dk, Accumulator& dv,
                   const OptionGradients& of_options) {
  const DType dtype = p.q.dtype;
  const auto tiny = static_cast<float>(min_normal(dtype));
  const auto scale = static_cast<float>(p.scale);
  DotsOfRow dots(h.v);
  for (std::int64_t i = 0; i < h.q.rows; ++i) {
    const float lse = h.lse.at(i, 0);
    dots.begin(h.dout.row(i));
    if (lse == -kInfinity || h.sink == kInfinity) continue;  // every p of the row is 0
    const float dlse = p.dlse ? static_cast<float>(core::load(core::q_matrix(*p.dlse, h.s, h.head), i, 0)) : 0;
    const Dot delta(h.dout.row(i), h.o.row(i), h.v.cols);
    float delta_walk = 0;  // squared error of delta, because O was rounded to the dtype
    // Squared error from rounding P for O; equal entries of a row have equal rounding errors.
    float p_walk = delta.value * delta.value;
    for (std::int64_t c = 0; c < h.v.cols; ++c) {
      delta_walk += std::pow(h.dout.at(i, c) * h.o.at(i, c), 2.0F);
      p_walk += std::pow(h.dout.at(i, c) * tiny, 2.0F);
    }
    for (std::int64_t j = 0; j < h.k.rows; ++j) {
      if (h.scores.value.at(i, j) == -kInfinity) continue;
      const float keep = h.scores.keep.at(i, j);
      const float slope = h.scores.slope.at(i, j);
      const float prob = std::exp(h.scores.value.at(i, j) - lse);
      // GPUs flush these p to 0.
      const float flushed = prob < std::numeric_limits<float>::min() ? 1 / kF32Roundoff : 0;
      // Includes the rounding of lse to f32.
      const float size = 1 + h.scores.magnitude.at(i, j) + std::abs(lse) + flushed;
      const Dot dp = dots.at(j);
      const float kept_dp = keep == 0 ? 0 : keep * dp.value;
      const float kept_prob = kept == KeptP::kRounded ? round_to(dtype, prob) : prob;
      const float ds = kept_prob * (kept_dp - (delta.value - dlse));
      const float ds_size = prob * ((keep == 0 ? 0 : keep * dp.magnitude) + delta.magnitude + std::abs(dlse));
      const float step = std::max(std::sqrt(ds * ds + prob * prob * delta_walk), tiny);
      const float factor = scale * round_to(dtype, ds * slope);
      const float error =
          ds_size * (size * slope * (p.transform_cap > 0 ? 3.0F : 1.0F) + (p.transform_cap > 0 ? 2.0F : 0.0F));
      dq.add(i, factor, scale * step, std::abs(scale) * error, h.k.row(j));
      dk.add(j, factor, scale * step, std::abs(scale) * error, h.q.row(i));
      p_walk += std::pow(std::max(prob, tiny) * kept_dp, 2.0F);
      if (of_options.dbias != nullptr) of_options.dbias->add(h.s.batch, h.head, i, j, ds, step, ds_size * size);
      if (keep == 0) continue;
      dv.add(j, round_to(dtype, prob * keep), std::max(prob * keep, tiny), prob * keep * size, h.dout.row(i));
    }
    if (of_options.dsinks != nullptr) of_options.dsinks->add(h, i, delta, dlse, std::sqrt(delta_walk + p_walk));
  }
}

}  // namespace

Standard run_standard(const Inputs& in, KeptP kept) {
  const Outputs views = make_outputs(in);  // used only for their shapes
  BackwardExtras extras;
  if (in.dlse) extras.dlse = in.dlse->view();
  if (views.dbias) extras.dbias = views.dbias->view();
  if (views.dsinks) extras.dsinks = views.dsinks->view();
  const Problem p = core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), views.o.view(),
                                                views.lse.view(), views.dq.view(), views.dk.view(), views.dv.view(),
                                                in.params("auto"), extras);
  const DType dtype = p.q.dtype;
  Standard out = {make_result(p.o.shape), make_result(p.lse->shape), make_result(p.q.shape), make_result(p.k.shape),
                  make_result(p.v.shape)};
  std::optional<BiasGradient> dbias;
  if (p.dbias) dbias.emplace(p);
  std::optional<SinkGradient> dsinks;
  if (p.dsinks) dsinks.emplace(p);
  const OptionGradients of_options = {dbias ? &*dbias : nullptr, dsinks ? &*dsinks : nullptr};
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    for (std::int64_t key_head = 0; key_head < p.num_heads_k; ++key_head) {
      Accumulator dk(s.seqlen_k, p.head_dim);
      Accumulator dv(s.seqlen_k, p.head_dim_v);
      for (std::int64_t head = key_head * p.heads_per_group(); head < (key_head + 1) * p.heads_per_group(); ++head) {
        HeadData h(p, s, head);
        forward_head(p, h, out);
        Accumulator dq(s.seqlen_q, p.head_dim);
        backward_head(p, h, kept, dq, dk, dv, of_options);
        place(out.dq, dq, dtype, s.batch, head, s.q_begin);
      }
      place(out.dk, dk, dtype, s.batch, key_head, s.k_begin);
      place(out.dv, dv, dtype, s.batch, key_head, s.k_begin);
    }
  }
  if (dbias) {
    out.dbias = make_result(dbias->shape);
    Accumulator& sums = dbias->sums;
    place(*out.dbias, sums, in.bias->dtype(), 0, 0, 0);
  }
  if (dsinks) out.dsinks = dsinks->result(in.sinks->dtype());
  return out;
}

}  // namespace attend::test
