#include "score/function_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace attend::test {
namespace {

constexpr long double kHidden = -INFINITY;

/// The scores of one head of one sequence, and their gradients.
class Head {
 public:
  Head(const Inputs& in, std::int64_t sequence, std::int64_t head, const OracleFunction& function)
      : h_(dense_head(in, sequence, head)), rows_(h_.q.size()), keys_(h_.k.size()) {
    f_ = std::vector<std::vector<FunctionValue>>(rows_, std::vector<FunctionValue>(keys_));
    capped_slope_ = Grid<long double>(rows_, std::vector<long double>(keys_, 1));
    const auto number = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < keys_; ++j) {
        long double s = 0;
        for (std::size_t c = 0; c < h_.q[i].size(); ++c) s += h_.q[i][c] * h_.k[j][c];
        s *= h_.scale;
        if (h_.softcap > 0) {
          const long double t = std::tanh(s / h_.softcap);
          s = h_.softcap * t, capped_slope_[i][j] = 1 - t * t;
        }
        s += h_.constant[i][j] + h_.bias[i][j];
        f_[i][j] = function(s, {sequence, head, number(i), number(j), number(rows_), number(keys_)});
        if (!h_.visible[i][j] || h_.bias[i][j] == kHidden) f_[i][j] = {kHidden, 0};
      }
    }
    softmax();
  }

  const DenseHead<long double>& inputs() const { return h_; }
  const FunctionValue& function(std::size_t i, std::size_t j) const { return f_[i][j]; }
  long double capped_slope(std::size_t i, std::size_t j) const { return capped_slope_[i][j]; }
  long double p(std::size_t i, std::size_t j) const { return p_[i][j]; }
  long double p_sink(std::size_t i) const { return h_.sink ? std::exp(*h_.sink - lse_[i]) : 0; }
  long double lse(std::size_t i) const { return lse_[i]; }

  std::vector<long double> o(std::size_t i) const {
    std::vector<long double> row(keys_ == 0 ? 0 : h_.v[0].size());
    for (std::size_t j = 0; j < keys_; ++j) {
      for (std::size_t c = 0; c < row.size(); ++c) row[c] += p_[i][j] * h_.keep[i][j] * h_.v[j][c];
    }
    return row;
  }

 private:
  void softmax() {
    p_ = Grid<long double>(rows_, std::vector<long double>(keys_));
    lse_.assign(rows_, kHidden);
    for (std::size_t i = 0; i < rows_; ++i) {
      long double most = h_.sink ? *h_.sink : kHidden, sum = 0;
      for (std::size_t j = 0; j < keys_; ++j) most = std::max(most, f_[i][j].score);
      if (most == kHidden) continue;
      for (std::size_t j = 0; j < keys_; ++j) sum += std::exp(f_[i][j].score - most);
      if (h_.sink) sum += std::exp(*h_.sink - most);
      lse_[i] = most + std::log(sum);
      for (std::size_t j = 0; j < keys_; ++j) p_[i][j] = std::exp(f_[i][j].score - lse_[i]);
    }
  }

  DenseHead<long double> h_;
  std::size_t rows_, keys_;
  std::vector<std::vector<FunctionValue>> f_;
  Grid<long double> capped_slope_, p_;
  std::vector<long double> lse_;
};

/// A tensor of sums, stored as a row-major vector.
class Sums {
 public:
  explicit Sums(const Shape& shape)
      : shape_(shape), values_(static_cast<std::size_t>(Tensor{.shape = shape}.numel())) {}
  long double& at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) {
    return values_[static_cast<std::size_t>(((b * shape_[1] + h) * shape_[2] + row) * shape_[3] + col)];
  }
  /// Returns the sum for a position. Dimensions of size 1 are broadcast.
  long double& broadcast(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t col) {
    return at(shape_[0] == 1 ? 0 : b, shape_[1] == 1 ? 0 : h, shape_[2] == 1 ? 0 : row, col);
  }
  [[nodiscard]] std::vector<double> values() const { return {values_.begin(), values_.end()}; }

 private:
  Shape shape_;
  std::vector<long double> values_;
};

struct AllSums {
  Sums o, lse, dq, dk, dv, dbias, dsinks;
  std::map<std::string, std::vector<long double>> captures, squares;
};

/// Adds the squared error of each row. The terms of a row share the errors of its o and its lse, so they are added
/// before squaring. Errors of different rows are independent.
void add_squares(const std::map<std::pair<std::string, std::int64_t>, long double>& of_row, AllSums& sums) {
  for (const auto& [at, terms] : of_row) {
    sums.squares[at.first][static_cast<std::size_t>(at.second)] += terms * terms;
  }
}

void add_row_gradients(const Inputs& in, const Head& head, std::int64_t sequence, std::int64_t h, std::size_t i,
                       AllSums& sums) {
  const AttentionCase& c = in.options;
  const Span at = span_of(c, sequence);
  const std::int64_t key_head = h * c.heads_k / c.heads_q, row = at.q_first + static_cast<std::int64_t>(i);
  const DenseHead<long double>& x = head.inputs();
  const std::vector<long double> o = head.o(i);
  long double delta = in.dlse ? -in.dlse->at(at.batch, h, row, 0) : 0;
  for (std::size_t d = 0; d < o.size(); ++d) delta += in.dout.at(at.batch, h, row, static_cast<std::int64_t>(d)) * o[d];
  if (in.sinks && head.lse(i) != kHidden) {
    sums.dsinks.broadcast(sequence, h, 0, 0) -= head.p_sink(i) * delta;
  }
  std::map<std::pair<std::string, std::int64_t>, long double> of_row;
  for (std::size_t j = 0; j < x.k.size(); ++j) {
    const FunctionValue& f = head.function(i, j);
    if (f.score == kHidden) continue;
    const std::int64_t key = at.k_first + static_cast<std::int64_t>(j);
    long double dp = 0;
    for (std::size_t d = 0; d < o.size(); ++d) {
      const auto col = static_cast<std::int64_t>(d);
      const long double dout = in.dout.at(at.batch, h, row, col);
      dp += dout * x.keep[i][j] * x.v[j][d];
      sums.dv.at(at.batch, key_head, key, col) += head.p(i, j) * x.keep[i][j] * dout;
    }
    const long double ds = head.p(i, j) * (dp - delta);
    for (const ByElement& by : f.by_elements) {
      sums.captures[by.capture][static_cast<std::size_t>(by.element)] += ds * by.derivative;
      of_row[{by.capture, by.element}] += std::abs(ds * by.derivative);
    }
    const long double before = ds * f.slope;
    if (in.bias) sums.dbias.broadcast(sequence, h, row, key) += before;
    const long double factor = x.scale * before * head.capped_slope(i, j);
    for (std::size_t d = 0; d < x.q[i].size(); ++d) {
      const auto col = static_cast<std::int64_t>(d);
      sums.dq.at(at.batch, h, row, col) += factor * x.k[j][d];
      sums.dk.at(at.batch, key_head, key, col) += factor * x.q[i][d];
    }
  }
  add_squares(of_row, sums);
}

}  // namespace

OracleCaptures::OracleCaptures(const ScoreCase& c) {
  for (const CaptureBuffer& b : c.captures) values_[b.name()] = b.values(), shapes_[b.name()] = b.shape();
}

std::int64_t OracleCaptures::element(const std::string& name, const std::vector<std::int64_t>& subscripts) const {
  const std::vector<std::int64_t>& shape = shapes_.at(name);
  std::int64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    at = at * shape[d] + std::min(std::max<std::int64_t>(subscripts.at(d), 0), shape[d] - 1);
  }
  return at;
}

Dual OracleCaptures::load(const std::string& name, const std::vector<std::int64_t>& subscripts) const {
  const std::pair<std::string, std::int64_t> at = {name, element(name, subscripts)};
  if (std::find(loaded_.begin(), loaded_.end(), at) == loaded_.end()) loaded_.push_back(at);
  return {values_.at(name)[static_cast<std::size_t>(at.second)], at == growing_ ? 1.0L : 0.0L};
}

std::int64_t OracleCaptures::load_int(const std::string& name, const std::vector<std::int64_t>& subscripts) const {
  return static_cast<std::int64_t>(values_.at(name)[static_cast<std::size_t>(element(name, subscripts))]);
}

OracleFunction oracle_function(
    const ScoreCase& c,
    std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function) {
  return
      [captures = OracleCaptures(c), function = std::move(function)](long double score, const ScorePlace& at) mutable {
        captures.loaded_.clear();
        const Dual by_score = function(Dual(score, 1), at, captures);
        FunctionValue value = {by_score.value, by_score.tangent};
        const auto loaded = captures.loaded_;
        for (const auto& one : loaded) {
          captures.growing_ = one;
          value.by_elements.push_back({one.first, one.second, function(Dual(score, 0), at, captures).tangent});
        }
        captures.growing_ = {"", -1};
        return value;
      };
}

ScoreResults oracle_results(const ScoreCase& c, const Inputs& in, const OracleFunction& function) {
  const AttentionCase& a = in.options;
  const Shape none = {0, 0, 0, 0}, o_shape = {in.q.shape()[0], in.q.shape()[1], in.q.shape()[2], in.v.shape()[3]};
  AllSums sums = {Sums(o_shape),
                  Sums({o_shape[0], o_shape[1], o_shape[2], 1}),
                  Sums(in.q.shape()),
                  Sums(in.k.shape()),
                  Sums(in.v.shape()),
                  Sums(in.bias ? in.bias->shape() : none),
                  Sums(in.sinks ? in.sinks->shape() : none),
                  {},
                  {}};
  for (const CaptureBuffer& b : c.captures) {
    sums.captures[b.name()].resize(static_cast<std::size_t>(b.numel()));
    sums.squares[b.name()].resize(static_cast<std::size_t>(b.numel()));
  }
  for (std::int64_t sequence = 0; sequence < a.num_sequences(); ++sequence) {
    const Span at = span_of(a, sequence);
    for (std::int64_t h = 0; h < a.heads_q; ++h) {
      const Head head(in, sequence, h, function);
      for (std::int64_t i = 0; i < at.q_count; ++i) {
        const auto row = static_cast<std::size_t>(i);
        sums.lse.at(at.batch, h, at.q_first + i, 0) = head.lse(row);
        const std::vector<long double> o = head.o(row);
        for (std::size_t d = 0; d < o.size(); ++d) {
          sums.o.at(at.batch, h, at.q_first + i, static_cast<std::int64_t>(d)) = o[d];
        }
        add_row_gradients(in, head, sequence, h, row, sums);
      }
    }
  }
  ScoreResults results = {sums.o.values(), sums.lse.values(), sums.dq.values(), sums.dk.values(), sums.dv.values()};
  if (in.bias && a.dbias) results.dbias = sums.dbias.values();
  if (in.sinks && a.dsinks) results.dsinks = sums.dsinks.values();
  for (const auto& [name, values] : sums.captures) results.captures[name] = {values.begin(), values.end()};
  for (const auto& [name, values] : sums.squares) {
    results.magnitudes[name] = static_cast<double>(std::sqrt(*std::max_element(values.begin(), values.end())));
  }
  return results;
}

}  // namespace attend::test
