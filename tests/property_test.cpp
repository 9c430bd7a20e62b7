// Tests properties of attention that need no reference: permuting, splitting, grouping, shifting and linearity.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 70,
          .seqlen_k = 133,
          .head_dim = 40,
          .head_dim_v = 24,
          .seed = 21};
}

class Property : public testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] static double tolerance() { return property_tolerance(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Property, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

/// Returns t with row n moved to row to[n].
TensorBuffer rows_moved(const TensorBuffer& t, const std::vector<std::int64_t>& to) {
  TensorBuffer moved(t.dtype(), t.shape());
  t.generate([&](auto b, auto h, auto row, auto col) {
    moved.set(b, h, to[row], col, t.at(b, h, row, col));
    return t.at(b, h, row, col);
  });
  return moved;
}

TensorBuffer columns_moved(const TensorBuffer& t, const std::vector<std::int64_t>& to) {
  TensorBuffer moved(t.dtype(), t.shape());
  t.generate([&](auto b, auto h, auto row, auto col) {
    moved.set(b, h, row, to[col], t.at(b, h, row, col));
    return t.at(b, h, row, col);
  });
  return moved;
}

TEST_P(Property, P01_KeysMayBePermutedWithTheirValues) {
  AttentionCase c = base_case(GetParam());
  c.bias = Broadcast{};
  c.mask = Broadcast{};
  const Inputs in = make_inputs(c);
  std::vector<std::int64_t> to(static_cast<std::size_t>(c.seqlen_k));
  std::iota(to.begin(), to.end(), 0);
  std::shuffle(to.begin(), to.end(), std::mt19937_64(5));
  Inputs permuted = in;
  permuted.k = rows_moved(in.k, to);
  permuted.v = rows_moved(in.v, to);
  permuted.bias = columns_moved(*in.bias, to);
  permuted.mask = columns_moved(*in.mask, to);
  Outputs want = run(in, "cpu");
  want.dk = rows_moved(want.dk, to);
  want.dv = rows_moved(want.dv, to);
  want.dbias = columns_moved(*want.dbias, to);
  expect_near(run(permuted, "cpu"), want, tolerance());
}

/// o and lse over some of the keys, or over several merged ranges of keys.
struct Part {
  std::vector<double> o, lse;
};

Part merge(const Part& a, const Part& b) {
  Part m = a;
  const std::size_t cols = a.o.size() / a.lse.size();
  for (std::size_t row = 0; row < a.lse.size(); ++row) {
    const double top = std::max(a.lse[row], b.lse[row]);
    if (top == -INFINITY) continue;  // neither range has visible keys, so o stays 0 and lse stays -inf
    const double wa = std::exp(a.lse[row] - top), wb = std::exp(b.lse[row] - top);
    m.lse[row] = top + std::log(wa + wb);
    for (std::size_t n = row * cols; n < (row + 1) * cols; ++n) m.o[n] = (wa * a.o[n] + wb * b.o[n]) / (wa + wb);
  }
  return m;
}

/// Returns attention of all queries over the keys [begin, end). The causal mask is that of the full problem.
Part attend_to(const Inputs& in, std::int64_t begin, std::int64_t end) {
  const Outputs out = make_outputs(in);
  Tensor k = in.k.view(), v = in.v.view();
  for (Tensor* t : {&k, &v}) {
    t->data = static_cast<char*>(t->data) + begin * t->stride[2] * dtype_bytes(t->dtype);
    t->shape[2] = end - begin;
  }
  // The causal mask is aligned to the last key. If the keys end earlier, window_right moves the diagonal back.
  const Params params = {.window_right = in.options.seqlen_k - end, .compute = "cpu"};
  forward(in.q.view(), k, v, out.o.view(), &out.lse.view(), params);
  return {out.o.values(), out.lse.values()};
}

TEST_P(Property, P02_PartsOfTheKeysMergeByLse) {
  AttentionCase c = base_case(GetParam());
  c.causal = true;
  const Inputs in = make_inputs(c);
  const Outputs whole = make_outputs(in);
  run_forward(in, whole, "cpu");
  const auto check = [&](const char* name, const Part& merged) {
    expect_near(name, merged.o, whole.o.values(), tolerance());
    expect_near(name, merged.lse, whole.lse.values(), property_tolerance(DType::kF32));
  };
  for (const std::int64_t at : {0L, 1L, 37L, 64L, 65L, 132L, 133L}) {
    SCOPED_TRACE(at);
    const Part left = attend_to(in, 0, at), right = attend_to(in, at, c.seqlen_k);
    check("two parts", merge(left, right));
    check("swapped", merge(right, left));
  }
  const Part a = attend_to(in, 0, 20), b = attend_to(in, 20, 90), d = attend_to(in, 90, c.seqlen_k);
  check("(a b) d", merge(merge(a, b), d));
  check("a (b d)", merge(a, merge(b, d)));
}

TEST_P(Property, P04_GroupedHeadsAreRepeatedHeads) {
  struct Heads {
    std::int64_t q, k;
  };
  for (const Heads heads : {Heads{4, 2}, {3, 1}, {10, 2}, {7, 1}, {8, 1}, {6, 3}}) {
    AttentionCase c = base_case(GetParam());
    c.heads_q = heads.q;
    c.heads_k = heads.k;
    c.causal = true;
    SCOPED_TRACE(describe(c));
    const Inputs grouped = make_inputs(c);
    const std::int64_t group = heads.q / heads.k;
    Inputs repeated = grouped;
    repeated.options.heads_k = heads.q;
    const auto repeat = [&](const TensorBuffer& t) {
      return made(t.dtype(), {t.shape()[0], heads.q, t.shape()[2], t.shape()[3]},
                  [&](auto b, auto h, auto row, auto col) { return t.at(b, h / group, row, col); });
    };
    repeated.k = repeat(grouped.k);
    repeated.v = repeat(grouped.v);
    const Outputs got = run(grouped, "cpu");
    Outputs want = run(repeated, "cpu");
    // Sums in f64, so that the expected value has no rounding error.
    const auto sum_groups = [&](const TensorBuffer& t) {
      return made(DType::kF64, {t.shape()[0], heads.k, t.shape()[2], t.shape()[3]},
                  [&](auto b, auto h, auto row, auto col) {
                    double sum = 0;
                    for (std::int64_t n = 0; n < group; ++n) sum += t.at(b, h * group + n, row, col);
                    return sum;
                  });
    };
    want.dk = sum_groups(want.dk);
    want.dv = sum_groups(want.dv);
    expect_near(got, want, tolerance());
  }
}

// An extra channel has the value 1 in q and c in k. The product of the two adds c to every score of a row.
TEST(ScoreShift, P05_LeavesOAndShiftsLse) {
  AttentionCase c = {.batch = 1,
                     .heads_q = 2,
                     .heads_k = 1,
                     .seqlen_q = 88,
                     .seqlen_k = 200,
                     .head_dim = 17,
                     .head_dim_v = 24,
                     .scale = 0.5,
                     .causal = true,
                     .seed = 23};
  const Inputs plain = make_inputs(c);
  const auto put = [&](const TensorBuffer& t, double value) {
    t.generate([&](auto b, auto h, auto row, auto col) { return col == 16 ? value : t.at(b, h, row, col); });
  };
  put(plain.q, 1);
  put(plain.k, 0);
  const Outputs want = run(plain, "cpu");
  for (const double shift : {-1e5, -1e3, -87.0, -1.0, 1.0, 88.0, 1e3, 1e5}) {
    SCOPED_TRACE(shift);
    put(plain.k, shift / *c.scale);
    const Outputs got = run(plain, "cpu");
    // A score near `shift` has a rounding error of up to 2^-24 |shift|, and so does the LSE that backward reads.
    const double rounding = kLseMagnitude * std::abs(shift);
    expect_near("o", got.o.values(), want.o.values(), property_tolerance(DType::kF32) + rounding);
    expect_near("dv", got.dv.values(), want.dv.values(), property_tolerance(DType::kF32) + 2 * rounding);
    std::vector<double> lse = want.lse.values();
    for (double& x : lse) x += shift;
    expect_near("lse", got.lse.values(), lse, (kLseAbsolute + rounding) / std::max(1.0, std::abs(shift)), 1);
    EXPECT_GT(largest_magnitude(got.o.values()), 0.1) << "a shift must not empty the rows";
  }
}

TEST_P(Property, P06_ValuesOfOneGiveOne) {
  for (const bool causal : {false, true}) {
    AttentionCase c = base_case(GetParam());
    c.causal = causal;
    const Inputs in = make_inputs(c);
    in.v.fill(1);
    const Outputs out = make_outputs(in);
    run_forward(in, out, "cpu");
    expect_near("o", out.o.values(), std::vector<double>(out.o.values().size(), 1.0), tolerance() / 4);
  }
}

TEST_P(Property, P06_OutputIsLinearInValues) {
  const Inputs in = make_inputs(base_case(GetParam()));
  Inputs second = in, sum = in;
  second.v =
      made(GetParam(), in.v.shape(), [](auto, auto, auto row, auto col) { return std::sin(double(row * 3 + col)); });
  // 2 v - v' is rounded to the dtype. The tolerance covers this rounding.
  sum.v = made(GetParam(), in.v.shape(), [&](auto b, auto h, auto row, auto col) {
    return 2 * in.v.at(b, h, row, col) - second.v.at(b, h, row, col);
  });
  const Outputs a = make_outputs(in), b = make_outputs(in), both = make_outputs(in);
  run_forward(in, a, "cpu");
  run_forward(second, b, "cpu");
  run_forward(sum, both, "cpu");
  std::vector<double> want = a.o.values();
  const std::vector<double> minus = b.o.values();
  for (std::size_t n = 0; n < want.size(); ++n) want[n] = 2 * want[n] - minus[n];
  expect_near("o", both.o.values(), want, tolerance());
}

TEST_P(Property, P06_OneHotValuesShowProbabilities) {
  AttentionCase c = base_case(GetParam());
  c.head_dim_v = c.seqlen_k;
  c.causal = true;
  const Inputs in = make_inputs(c);
  in.v.generate([](auto, auto, auto row, auto col) { return row == col ? 1.0 : 0.0; });
  const Outputs out = make_outputs(in);
  run_forward(in, out, "cpu");
  for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < c.seqlen_k; ++j) {
      const double p = out.o.at(1, 3, i, j);
      ASSERT_TRUE(p >= 0 && p <= 1) << i << "," << j;
      ASSERT_TRUE(j <= i + c.seqlen_k - c.seqlen_q || p == 0) << i << "," << j;
      sum += p;
    }
    ASSERT_NEAR(sum, 1, tolerance()) << i;
  }
}

TEST_P(Property, P07_ValueGradientIsLinearAndConservesItsSum) {
  AttentionCase c = base_case(GetParam());
  c.heads_k = c.heads_q;
  c.causal = true;
  const Inputs in = make_inputs(c);
  Inputs scaled = in;
  scaled.dout = made(GetParam(), in.dout.shape(), [&](auto... at) { return -4 * in.dout.at(at...); });
  const Outputs out = run(in, "cpu");
  std::vector<double> want = out.dv.values();
  for (double& x : want) x *= -4;
  expect_near("dv", run(scaled, "cpu").dv.values(), want, tolerance());
  // p of each row sums to 1, so the sum of dv over keys equals the sum of dout over rows.
  double largest = 0;
  for (std::int64_t col = 0; col < c.head_dim_v; ++col) {
    double given = 0, received = 0, size = 0;
    for (std::int64_t i = 0; i < c.seqlen_q; ++i)
      given += in.dout.at(1, 2, i, col), size += std::abs(in.dout.at(1, 2, i, col));
    for (std::int64_t j = 0; j < c.seqlen_k; ++j) received += out.dv.at(1, 2, j, col);
    largest = std::max(largest, std::abs(given - received) / size);
  }
  EXPECT_LE(largest, tolerance());
}

}  // namespace
}  // namespace attend::test
