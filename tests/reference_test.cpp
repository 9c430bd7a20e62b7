// The `reference` backend gives the expected values of all other tests. Here it is compared only with mathematics:
// central differences, forward-mode derivatives, and a second formulation.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/dense_oracle.hpp"
#include "support/option_cases.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

double largest(const std::vector<double>& x) {
  double m = 0;
  for (const double value : x) m = std::max(m, std::isfinite(value) ? std::abs(value) : 0);
  return m;
}

/// Expects |a - b| <= tolerance * max(1, largest |b|) for each element. Infinities must match.
void expect_close(const char* name, const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size()) << name;
  const double allowed = tolerance * std::max(1.0, largest(b));
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (std::isinf(b[n])) {
      EXPECT_EQ(a[n], b[n]) << name << "[" << n << "]";
    } else {
      EXPECT_TRUE(std::abs(a[n] - b[n]) <= allowed) << name << "[" << n << "]: " << a[n] << " against " << b[n];
    }
  }
}

class Reference : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override { SCOPED_TRACE(describe(GetParam())); }
};

/// Returns the loss whose gradients backward computes: <dout, o> + <dlse, lse>. Rows without visible keys and without a
/// sink have lse = -inf and add nothing.
double loss(const Inputs& in) {
  const Outputs out = make_outputs(in);
  run_forward(in, out, "reference");
  const std::vector<double> o = out.o.values(), dout = in.dout.values(), lse = out.lse.values();
  double sum = 0;
  for (std::size_t n = 0; n < o.size(); ++n) sum += o[n] * dout[n];
  if (!in.dlse) return sum;
  const std::vector<double> dlse = in.dlse->values();
  for (std::size_t n = 0; n < lse.size(); ++n) sum += std::isinf(lse[n]) ? 0 : lse[n] * dlse[n];
  return sum;
}

/// Returns the derivative of the loss with respect to each element of t, computed by the five-point central difference.
std::vector<double> central_difference(const Inputs& in, const TensorBuffer& t) {
  constexpr double kStep = 1e-3;  // the truncation error is of order kStep^4
  std::vector<double> gradient;
  for (std::int64_t b = 0; b < t.shape()[0]; ++b) {
    for (std::int64_t h = 0; h < t.shape()[1]; ++h) {
      for (std::int64_t row = 0; row < t.shape()[2]; ++row) {
        for (std::int64_t col = 0; col < t.shape()[3]; ++col) {
          const double x = t.at(b, h, row, col);
          const auto at = [&](double shift) {
            t.set(b, h, row, col, x + shift * kStep);
            return loss(in);
          };
          gradient.push_back((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep));
          t.set(b, h, row, col, x);
        }
      }
    }
  }
  return gradient;
}

TEST_P(Reference, P09_GradientsAreCentralDifferences) {
  const Inputs in = make_inputs(GetParam());
  const Outputs out = run(in, "reference");
  expect_close("dq", out.dq.values(), central_difference(in, in.q), kCentralDifference);
  expect_close("dk", out.dk.values(), central_difference(in, in.k), kCentralDifference);
  expect_close("dv", out.dv.values(), central_difference(in, in.v), kCentralDifference);
  if (out.dbias) expect_close("dbias", out.dbias->values(), central_difference(in, *in.bias), kCentralDifference);
  if (out.dsinks) expect_close("dsinks", out.dsinks->values(), central_difference(in, *in.sinks), kCentralDifference);
}

/// Results of the second formulation as dense tensors.
struct OracleOutputs {
  TensorBuffer o, lse, dq, dk, dv;
  std::optional<TensorBuffer> dbias = {}, dsinks = {};
};

void add(const TensorBuffer& t, std::int64_t b, std::int64_t h, std::int64_t first, const Grid<long double>& rows) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const auto row = first + static_cast<std::int64_t>(r);
      const auto col = static_cast<std::int64_t>(c);
      t.set(b, h, row, col, static_cast<double>(t.at(b, h, row, col) + rows[r][c]));
    }
  }
}

OracleOutputs run_oracle(const Inputs& in) {
  const AttentionCase& c = in.options;
  const Outputs like = make_outputs(in);
  const auto zeros = [](const TensorBuffer& t) {
    const TensorBuffer z(DType::kF64, t.shape());
    z.fill(0);
    return z;
  };
  OracleOutputs out = {zeros(like.o), zeros(like.lse), zeros(like.dq), zeros(like.dk), zeros(like.dv)};
  if (like.dbias) out.dbias = zeros(*like.dbias);
  if (like.dsinks) out.dsinks = zeros(*like.dsinks);
  for (std::int64_t sequence = 0; sequence < c.num_sequences(); ++sequence) {
    const Span at = span_of(c, sequence);
    for (std::int64_t head = 0; head < c.heads_q; ++head) {
      const DenseHead<long double> h = dense_head(in, sequence, head);
      const DenseForward<long double> f = dense_forward(h);
      std::vector<long double> dlse(at.q_count);
      for (std::int64_t i = 0; i < at.q_count; ++i) {
        if (in.dlse) dlse[i] = in.dlse->at(at.batch, head, at.q_first + i, 0);
        out.lse.set(at.batch, head, at.q_first + i, 0, f.empty[i] ? -INFINITY : static_cast<double>(f.lse[i]));
      }
      const DenseGradients g = dense_backward(h, rows_of(in.dout, at.batch, head, at.q_first, at.q_count), dlse);
      const std::int64_t key_head = head * c.heads_k / c.heads_q;
      add(out.o, at.batch, head, at.q_first, f.o);
      add(out.dq, at.batch, head, at.q_first, g.dq);
      add(out.dk, at.batch, key_head, at.k_first, g.dk);
      add(out.dv, at.batch, key_head, at.k_first, g.dv);
      if (out.dsinks) add(*out.dsinks, c.sinks_per_sequence ? sequence : 0, head, 0, {{g.dsink}});
      if (!out.dbias) continue;
      const Shape& full = out.dbias->shape();
      for (std::int64_t i = 0; i < at.q_count; ++i) {
        add(*out.dbias, full[0] == 1 ? 0 : sequence, full[1] == 1 ? 0 : head, full[2] == 1 ? 0 : i, {g.ds[i]});
      }
    }
  }
  return out;
}

TEST_P(Reference, EqualsTheSecondFormulation) {
  const Inputs in = make_inputs(GetParam());
  const Outputs out = run(in, "reference");
  const OracleOutputs oracle = run_oracle(in);
  expect_close("o", out.o.values(), oracle.o.values(), kSecondFormulation);
  expect_close("lse", out.lse.values(), oracle.lse.values(), kSecondFormulation);
  expect_close("dq", out.dq.values(), oracle.dq.values(), kSecondFormulation);
  expect_close("dk", out.dk.values(), oracle.dk.values(), kSecondFormulation);
  expect_close("dv", out.dv.values(), oracle.dv.values(), kSecondFormulation);
  if (out.dbias) expect_close("dbias", out.dbias->values(), oracle.dbias->values(), kSecondFormulation);
  if (out.dsinks) expect_close("dsinks", out.dsinks->values(), oracle.dsinks->values(), kSecondFormulation);
}

Grid<Dual> with_tangent(const Grid<long double>& value, const Grid<long double>& tangent) {
  Grid<Dual> both(value.size());
  for (std::size_t r = 0; r < value.size(); ++r) {
    for (std::size_t c = 0; c < value[r].size(); ++c) both[r].push_back({value[r][c], tangent[r][c]});
  }
  return both;
}

long double inner(const Grid<long double>& a, const Grid<long double>& b) {
  long double sum = 0;
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (std::size_t c = 0; c < a[r].size(); ++c) sum += a[r][c] * b[r][c];
  }
  return sum;
}

// Checks that backward is the adjoint of the Jacobian J: <dout, J t> + <dlse, J t> = <J^T (dout, dlse), t>, for random
// tangents t of q, k, v and sinks. Dual numbers compute J t.
TEST_P(Reference, P08_BackwardIsTheAdjointOfTheDirectionalDerivative) {
  const AttentionCase& c = GetParam();
  const Inputs in = make_inputs(c);
  AttentionCase other = c;
  other.seed += 1000;
  const Inputs tangents = make_inputs(other);
  const Outputs out = run(in, "reference");
  long double forward_mode = 0, reverse_mode = 0, size = 0;
  for (std::int64_t sequence = 0; sequence < c.num_sequences(); ++sequence) {
    const Span at = span_of(c, sequence);
    for (std::int64_t head = 0; head < c.heads_q; ++head) {
      const std::int64_t key_head = head * c.heads_k / c.heads_q;
      const DenseHead<long double> h = dense_head(in, sequence, head);
      const auto q_rows = [&](const TensorBuffer& t) { return rows_of(t, at.batch, head, at.q_first, at.q_count); };
      const auto k_rows = [&](const TensorBuffer& t) { return rows_of(t, at.batch, key_head, at.k_first, at.k_count); };
      const Grid<long double> dout = q_rows(in.dout);
      DenseHead<Dual> dual = {with_tangent(h.q, q_rows(tangents.q)),
                              with_tangent(h.k, k_rows(tangents.k)),
                              with_tangent(h.v, k_rows(tangents.v)),
                              Grid<Dual>(h.q.size()),
                              h.visible,
                              h.constant,
                              h.keep,
                              h.scale,
                              h.softcap};
      for (std::size_t i = 0; i < h.q.size(); ++i) dual.bias[i].assign(h.bias[i].begin(), h.bias[i].end());
      const std::int64_t entry = c.sinks_per_sequence ? sequence : 0;
      if (h.sink) {
        const double tangent = tangents.sinks->at(entry, head, 0, 0);
        dual.sink = Dual(*h.sink, std::isfinite(tangent) ? tangent : 0);
        const bool counted = sequence > 0 && !c.sinks_per_sequence;  // a sink that all sequences share is counted once
        if (!counted) reverse_mode += out.dsinks->at(entry, head, 0, 0) * dual.sink->tangent;
      }
      const DenseForward<Dual> f = dense_forward(dual);
      for (std::size_t i = 0; i < h.q.size(); ++i) {
        for (std::size_t col = 0; col < f.o[i].size(); ++col) forward_mode += dout[i][col] * f.o[i][col].tangent;
        if (in.dlse && !f.empty[i]) {
          forward_mode += in.dlse->at(at.batch, head, at.q_first + static_cast<std::int64_t>(i), 0) * f.lse[i].tangent;
        }
      }
      reverse_mode += inner(q_rows(out.dq), q_rows(tangents.q));
      size += inner(q_rows(out.dq), q_rows(out.dq));
      if (head % (c.heads_q / c.heads_k) != 0) continue;  // dk and dv are counted once per key head
      reverse_mode += inner(k_rows(out.dk), k_rows(tangents.k)) + inner(k_rows(out.dv), k_rows(tangents.v));
      size += inner(k_rows(out.dv), k_rows(out.dv));
    }
  }
  EXPECT_TRUE(std::abs(forward_mode - reverse_mode) <= kAdjoint * std::max(1.0L, size))
      << "forward " << forward_mode << ", reverse " << reverse_mode;
}

INSTANTIATE_TEST_SUITE_P(EveryOption, Reference, testing::ValuesIn(option_cases(DType::kF64)),
                         [](const auto& test) { return std::to_string(test.index); });

// The size is medium, so that sums are long enough to reveal a wrong order of accumulation.
TEST(ReferenceMedium, EqualsTheSecondFormulation) {
  AttentionCase c = {.dtype = DType::kF64,
                     .batch = 1,
                     .heads_q = 2,
                     .heads_k = 1,
                     .seqlen_q = 33,
                     .seqlen_k = 70,
                     .head_dim = 40,
                     .head_dim_v = 24,
                     .causal = true,
                     .dlse = true,
                     .seed = 5};
  const Inputs in = make_inputs(c);
  const Outputs out = run(in, "reference");
  const OracleOutputs oracle = run_oracle(in);
  expect_close("o", out.o.values(), oracle.o.values(), kSecondFormulation);
  expect_close("dq", out.dq.values(), oracle.dq.values(), kSecondFormulation);
  expect_close("dk", out.dk.values(), oracle.dk.values(), kSecondFormulation);
  expect_close("dv", out.dv.values(), oracle.dv.values(), kSecondFormulation);
}

}  // namespace
}  // namespace attend::test
