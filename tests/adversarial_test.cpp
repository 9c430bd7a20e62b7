// Tests inputs that broke other implementations: extreme scores, extreme LSE, empty rows, empty tensors, and odd
// lengths.
#include <gtest/gtest.h>

#include <limits>

#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

class Adversarial : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, Adversarial, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 1,
          .heads_q = 2,
          .heads_k = 1,
          .seqlen_q = 66,
          .seqlen_k = 130,
          .head_dim = 32,
          .head_dim_v = 24,
          .seed = 61};
}

void expect_finite(const Outputs& out) {
  for (const TensorBuffer* t : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) {
    for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x)) << x;
  }
}

// All scores have the same magnitude. In the first call all scores have the same sign. In the second call one key has
// the opposite sign. The row maximum is far from 0, and differences between scores are either large or 0.
TEST_P(Adversarial, HugeScores) {
  for (const double size : {-1e5, 1e5}) {
    AttentionCase c = base_case(GetParam());
    c.scale = 1.0;
    const Inputs in = make_inputs(c);
    in.q.generate([](auto, auto, auto, auto col) { return col == 0 ? 256.0 : 0.0; });
    in.k.generate([&](auto, auto, auto, auto col) { return col == 0 ? size / 256 : 0.0; });
    const Outputs equal = run(in, "cpu");
    expect_finite(equal);
    double mean = 0;
    for (std::int64_t j = 0; j < c.seqlen_k; ++j) mean += in.v.at(0, 0, j, 3) / double(c.seqlen_k);
    for (std::int64_t i = 0; i < c.seqlen_q; ++i)
      EXPECT_NEAR(equal.o.at(0, 1, i, 3), mean, property_tolerance(GetParam()));
    in.k.generate([&](auto, auto, auto row, auto col) { return col == 0 ? (row == 77 ? size : -size) / 256 : 0.0; });
    const Outputs apart = run(in, "cpu");
    expect_finite(apart);
    if (size < 0) continue;
    for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
      for (std::int64_t col = 0; col < c.head_dim_v; ++col) ASSERT_EQ(apart.o.at(0, 0, i, col), in.v.at(0, 0, 77, col));
    }
    for (const double x : apart.dq.values()) ASSERT_NEAR(x, 0, property_tolerance(GetParam()) * std::abs(size));
  }
}

// The bias moves the LSE of all rows to a target value. Some targets are values at which exp overflows or underflows.
TEST_P(Adversarial, LseTargets) {
  for (const std::int64_t seqlen_k : {1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 192}) {
    for (const double target : {-200.0, -100.0, -88.8, -87.0, 0.0, 88.0, 100.0, 200.0}) {
      AttentionCase c = base_case(GetParam());
      c.seqlen_k = seqlen_k;
      c.seqlen_q = seqlen_k == 1 ? 1 : 33;
      c.bias = Broadcast{false, false, false};
      c.dlse = true;
      const Inputs in = make_inputs(c);
      in.bias->fill(target - std::log(double(seqlen_k)));
      SCOPED_TRACE(describe(c) + ", lse near " + std::to_string(target));
      check_against_reference(in, "cpu");
    }
  }
}

TEST_P(Adversarial, ShortKeysAndLargeValues) {
  for (const std::int64_t seqlen_k : {1, 2, 3, 5, 17}) {
    for (const std::int64_t seqlen_q : {1, 2, 64, 129}) {
      AttentionCase c = base_case(GetParam());
      c.seqlen_q = seqlen_q;
      c.seqlen_k = seqlen_k;
      c.fill = Fill::kLarge;
      check_against_reference(make_inputs(c), "cpu");
    }
  }
}

// The first tiles are fully masked, and all other scores are far below 0. If a row maximum wrongly started at 0, it
// would stay 0 and the rows would look empty.
TEST_P(Adversarial, NegativeScoresBehindMaskedTiles) {
  AttentionCase c = base_case(GetParam());
  c.heads_q = 7;
  c.seqlen_q = 88;
  c.seqlen_k = 448;
  c.causal = true;
  c.window_left = 40;
  c.bias = Broadcast{false, false, false};
  const Inputs in = make_inputs(c);
  for (const double shift : {-1e3, -6e4}) {
    in.bias->fill(shift);
    check_against_reference(in, "cpu");
  }
}

TEST_P(Adversarial, DenormalInputs) {
  AttentionCase c = base_case(GetParam());
  const double tiny = GetParam() == DType::kF16 ? 0x1p-20 : 0x1p-130;
  const Inputs in = make_inputs(c);
  in.v.generate([&](auto, auto, auto row, auto col) { return tiny * double((row * 5 + col) % 13); });
  in.q.generate([&](auto...) { return tiny; });
  const Outputs out = run(in, "cpu");
  expect_finite(out);
  const Outputs truth = run(as_f64(in), "reference");
  // Smallest difference between two numbers of the dtype. An average of up to 12 values may be wrong by this much.
  const double step = GetParam() == DType::kF16 ? 0x1p-24 : GetParam() == DType::kBF16 ? 0x1p-133 : 0x1p-149;
  const double f32_step = 0x1p-126;  // the hardware may flush f32 denormals to 0
  const std::vector<double> got = out.o.values(), want = truth.o.values();
  for (std::size_t n = 0; n < got.size(); ++n) ASSERT_NEAR(got[n], want[n], std::max(step, 2 * f32_step)) << n;
}

// A row that sees no key must have o = 0, lse = -inf and no gradient, and must not affect other rows.
TEST_P(Adversarial, EmptyRowsAreZeroAndHarmless) {
  AttentionCase c = base_case(GetParam());
  c.mask = Broadcast{false, true, true};
  c.dlse = true;
  const Inputs in = make_inputs(c);
  in.mask->generate([](auto, auto h, auto row, auto) { return (row + h) % 3 == 0 ? 0.0 : 1.0; });
  const Outputs out = run(in, "cpu");
  // Changes dout and dlse of the empty rows. No gradient may change.
  Inputs other = in;
  other.dout = made(GetParam(), in.dout.shape(), [&](auto b, auto h, auto row, auto col) {
    return (row + h) % 3 == 0 ? 1000.0 : in.dout.at(b, h, row, col);
  });
  other.dlse = made(DType::kF32, in.dlse->shape(), [&](auto b, auto h, auto row, auto col) {
    return (row + h) % 3 == 0 ? -1000.0 : in.dlse->at(b, h, row, col);
  });
  expect_same_bits(run(other, "cpu"), out);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t row = 0; row < c.seqlen_q; ++row) {
      const bool empty = (row + h) % 3 == 0;
      ASSERT_EQ(out.lse.at(0, h, row, 0) == -INFINITY, empty);
      ASSERT_EQ(out.o.at(0, h, row, 1) == 0, empty);
      ASSERT_EQ(out.dq.at(0, h, row, 1) == 0, empty);
    }
  }
  for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) {
    for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(Adversarial, EmptySizes) {
  struct Sizes {
    std::int64_t batch, heads, seqlen_q, seqlen_k;
  };
  for (const Sizes& s : {Sizes{0, 2, 5, 7}, {2, 0, 5, 7}, {2, 2, 0, 7}, {2, 2, 5, 0}, {2, 2, 0, 0}, {0, 0, 0, 0}}) {
    for (const bool causal : {false, true}) {
      AttentionCase c = base_case(GetParam());
      c.batch = s.batch;
      c.heads_q = c.heads_k = s.heads;
      c.seqlen_q = s.seqlen_q;
      c.seqlen_k = s.seqlen_k;
      c.causal = causal;
      SCOPED_TRACE(describe(c));
      const Outputs out = run(make_inputs(c), "cpu");
      for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) {
        for (const double x : t->values()) ASSERT_EQ(x, 0);
        EXPECT_TRUE(t->gaps_intact());
      }
      for (const double x : out.lse.values()) ASSERT_EQ(x, -INFINITY);
    }
  }
}

TEST_P(Adversarial, NoSequencesAndEmptySequences) {
  AttentionCase c = base_case(GetParam());
  c.varlen_q = {0, 0, 4, 0};
  c.varlen_k = {0, 5, 0, 0};  // one sequence has keys but no queries, another has queries but no keys
  const Outputs out = run(make_inputs(c), "cpu");
  for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) {
    for (const double x : t->values()) ASSERT_EQ(x, 0);
  }
  for (const double x : out.lse.values()) ASSERT_EQ(x, -INFINITY);
  // With num_sequences = 0, all tensors are empty.
  const std::int32_t zero = 0;
  const TensorBuffer q(GetParam(), {1, 2, 0, 8}), k(GetParam(), {1, 1, 0, 8}), o(GetParam(), {1, 2, 0, 8});
  EXPECT_NO_THROW(forward(q.view(), k.view(), k.view(), o.view(), nullptr,
                          {.varlen = Varlen{&zero, &zero, 0, 0, 0}, .compute = "cpu"}));
}

}  // namespace
}  // namespace attend::test
