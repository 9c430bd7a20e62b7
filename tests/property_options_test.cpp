// Tests properties of the scale and of dropout.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/attention/philox.cuh"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

class ScaleProperty : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, ScaleProperty, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

AttentionCase scale_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 1,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 65,
          .seqlen_k = 97,
          .head_dim = 24,
          .head_dim_v = 40,
          .causal = true,
          .seed = 31};
}

TEST_P(ScaleProperty, P12_PowersOfTwoMoveBetweenQAndScale) {
  AttentionCase c = scale_case(GetParam());
  c.scale = 0.2;
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, "cpu");
  for (const double factor : {0.25, 4.0}) {
    Inputs moved = in;
    moved.options.scale = *c.scale / factor;
    moved.q = made(GetParam(), in.q.shape(), [&](auto... at) { return factor * in.q.at(at...); });
    const Outputs got = run(moved, "cpu");
    expect_same_bits("o", got.o, want.o);
    expect_same_bits("lse", got.lse, want.lse);
    expect_same_bits("dv", got.dv, want.dv);
    // dk is the sum of scale * ds * q, in which the changes of scale and q cancel. dq is divided by the factor, so
    // float16 results may become subnormal.
    expect_same_bits("dk", got.dk, want.dk);
    if (GetParam() == DType::kF16) continue;
    expect_same_bits("dq", made(GetParam(), in.q.shape(), [&](auto... at) { return factor * got.dq.at(at...); }),
                     want.dq);
  }
}

TEST_P(ScaleProperty, P13_NegativeScaleIsNegatedQueries) {
  AttentionCase c = scale_case(GetParam());
  c.scale = 0.3;
  const Inputs in = make_inputs(c);
  Inputs negated = in;
  negated.options.scale = -0.3;
  negated.q = made(GetParam(), in.q.shape(), [&](auto... at) { return -in.q.at(at...); });
  const Outputs want = run(in, "cpu");
  Outputs got = run(negated, "cpu");
  got.dq = made(GetParam(), in.q.shape(), [&, dq = got.dq](auto... at) { return -dq.at(at...); });
  expect_same_bits(got, want);
}

TEST_P(ScaleProperty, P13_ZeroScaleIsTheMean) {
  AttentionCase c = scale_case(GetParam());
  c.scale = 0.0;
  c.dlse = true;
  const Inputs in = make_inputs(c);
  const Outputs out = run(in, "cpu");
  for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
    const std::int64_t keys = i + 1 + c.seqlen_k - c.seqlen_q;
    EXPECT_NEAR(out.lse.at(0, 3, i, 0), std::log(double(keys)), kLseAbsolute);
    double mean = 0;
    for (std::int64_t j = 0; j < keys; ++j) mean += in.v.at(0, 1, j, 5) / double(keys);
    EXPECT_NEAR(out.o.at(0, 3, i, 5), mean, property_tolerance(GetParam()));
  }
  for (const double x : out.dq.values()) ASSERT_EQ(x, 0);
  for (const double x : out.dk.values()) ASSERT_EQ(x, 0);
}

/// Uniform attention over 200 keys with identity values. o[i, j] and dv[j, i] show the probability of entry (i, j).
struct DropoutProbe {
  static constexpr std::int64_t kLength = 200;
  static constexpr std::int64_t kHeads = 3;

  explicit DropoutProbe(DType dtype, double p, std::uint64_t seed = 1)
      : in(make_inputs({.dtype = dtype,
                        .batch = 2,
                        .heads_q = kHeads,
                        .heads_k = kHeads,
                        .seqlen_q = kLength,
                        .seqlen_k = kLength,
                        .head_dim = 8,
                        .head_dim_v = kLength,
                        .dropout_p = p,
                        .seed = seed})) {
    const auto identity = [](auto, auto, auto row, auto col) { return row == col ? 1.0 : 0.0; };
    in.philox_state.reset();  // these tests pass seed and offset by value instead
    in.q.fill(0);
    in.v.generate(identity);
    in.dout.generate(identity);
    out = run(in, "cpu");
  }
  Inputs in;
  Outputs out;
};

class DropoutProperty : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Cpu, DropoutProperty, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(DropoutProperty, P15_MaskIsPhiloxInForwardAndBackward) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const DropoutProbe probe(GetParam(), p);
    const Params params = probe.in.params("cpu");
    const double kept_weight = 1 / (1 - p) / DropoutProbe::kLength;
    std::int64_t kept = 0, total = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < DropoutProbe::kHeads; ++h) {
        const DropMask mask = DropMask::make(params.seed, params.offset, b * DropoutProbe::kHeads + h, p);
        for (std::int64_t i = 0; i < DropoutProbe::kLength; ++i) {
          for (std::int64_t j = 0; j < DropoutProbe::kLength; ++j) {
            const double weight = mask.keeps(i, j) ? kept_weight : 0;
            const double tolerance = weight * property_tolerance(GetParam());
            ASSERT_NEAR(probe.out.o.at(b, h, i, j), weight, tolerance) << b << "," << h << "," << i << "," << j;
            ASSERT_NEAR(probe.out.dv.at(b, h, j, i), weight, tolerance) << b << "," << h << "," << i << "," << j;
            kept += weight != 0;
            ++total;
          }
        }
      }
    }
    const double n = static_cast<double>(total);
    EXPECT_NEAR(static_cast<double>(kept) / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n)) << "five standard deviations";
  }
}

TEST_P(DropoutProperty, P15_NoDropoutIsNoDropout) {
  const DropoutProbe none(GetParam(), 0.0, 1);
  DropoutProbe other_seed(GetParam(), 0.0, 1);
  other_seed.in.options.seed = 99;  // changes only the dropout mask, because the tensors are already made
  expect_same_bits(run(other_seed.in, "cpu"), none.out);
}

TEST_P(DropoutProperty, P15_LseIgnoresDropout) {
  expect_same_bits("lse", DropoutProbe(GetParam(), 0.5).out.lse, DropoutProbe(GetParam(), 0.0).out.lse);
}

// Each head, batch entry, seed and offset must have an independent dropout mask. Two masks may agree only by chance.
TEST(DropoutStreams, P15_AreIndependent) {
  constexpr double kP = 0.5;
  const Inputs in = DropoutProbe(DType::kF32, kP).in;
  const Params base = in.params("cpu");
  const auto masks = [&](std::uint64_t seed, std::uint64_t offset) {
    Params params = base;
    params.seed = seed;
    params.offset = offset;
    const Outputs out = make_outputs(in);
    forward(in.q.view(), in.k.view(), in.v.view(), out.o.view(), nullptr, params);
    return out.o.values();
  };
  const std::vector<double> first = masks(1, 0);
  EXPECT_EQ(first, masks(1, 0));
  const std::size_t head = DropoutProbe::kLength * DropoutProbe::kLength;
  const auto agreement = [&](const double* a, const double* b) {
    std::size_t same = 0;
    for (std::size_t n = 0; n < head; ++n) same += (a[n] == 0) == (b[n] == 0);
    return static_cast<double>(same) / static_cast<double>(head);
  };
  const double five_sigma = 5 * std::sqrt(0.25 / static_cast<double>(head));
  for (std::size_t other = 1; other < 2 * DropoutProbe::kHeads; ++other) {
    EXPECT_NEAR(agreement(first.data(), first.data() + other * head), 0.5, five_sigma) << "heads 0 and " << other;
  }
  for (const auto& [seed, offset] :
       {std::pair<std::uint64_t, std::uint64_t>{2, 0}, {1, 1}, {1ULL << 32 | 1, 0}, {1, 1ULL << 32}}) {
    EXPECT_NEAR(agreement(first.data(), masks(seed, offset).data()), 0.5, five_sigma) << seed << ", " << offset;
  }
}

}  // namespace
}  // namespace attend::test
