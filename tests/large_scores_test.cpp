// Tests large scores: a bias that all keys of a row share, products far from 0, and scores that overflow float.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/large_scores.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr double kLowest = std::numeric_limits<float>::lowest();

struct CommonBias {
  DType dtype;
  double bias;
  const char* name;
};

class ABiasOnAllKeysOfARow : public testing::TestWithParam<CommonBias> {};

INSTANTIATE_TEST_SUITE_P(
    Cpu, ABiasOnAllKeysOfARow,
    testing::Values(CommonBias{DType::kF32, -1e9, "f32_minus_1e9"}, CommonBias{DType::kF32, 1e9, "f32_plus_1e9"},
                    CommonBias{DType::kF32, -1e7, "f32_minus_1e7"}, CommonBias{DType::kF32, -3e4, "f32_minus_3e4"},
                    CommonBias{DType::kF32, kLowest, "f32_lowest"}, CommonBias{DType::kBF16, -1e9, "bf16_minus_1e9"},
                    CommonBias{DType::kBF16, -1e7, "bf16_minus_1e7"}, CommonBias{DType::kF16, -65504, "f16_lowest"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(ABiasOnAllKeysOfARow, LeavesEveryRowOfPASumOfOne) {
  const auto [dtype, bias, name] = GetParam();
  const Inputs in = with_common_bias(dtype, bias);
  expect_rows_of_p_sum_to_one(in, run(in, "cpu"));
}

TEST_P(ABiasOnAllKeysOfARow, KeepsEveryResultInBudget) {
  const auto [dtype, bias, name] = GetParam();
  std::printf("%s\n", check_against_reference(with_common_bias(dtype, bias), "cpu").c_str());
  AttentionCase c = {};
  c.softcap = 3;
  c.dropout_p = 0.25;
  c.dlse = true;
  std::printf("%s\n", check_against_reference(with_common_bias(dtype, bias, c), "cpu").c_str());
}

// With such a low bias the exact p is the same for all keys. Therefore dv of each key is the mean of dout, and no
// reference is needed.
class TheMean : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Cpu, TheMean, testing::Values("cpu", "reference"));

TEST_P(TheMean, IsWhatTheLowestBiasOnAllKeysLeavesOfEveryGradient) {
  AttentionCase c = {.seqlen_q = 40, .seqlen_k = 1024, .head_dim = 16, .head_dim_v = 16, .bias = Broadcast{}};
  const bool is_reference = std::string_view(GetParam()) == "reference";
  const Inputs f32 = make_inputs(c);
  f32.bias->fill(kLowest);
  const Inputs in = is_reference ? as_f64(f32) : f32;
  if (is_reference) in.bias->fill(std::numeric_limits<double>::lowest());
  const Outputs out = run(in, GetParam());
  for (std::int64_t col = 0; col < 16; ++col) {
    double sum = 0;
    for (std::int64_t row = 0; row < 40; ++row) sum += in.dout.at(0, 0, row, col);
    for (const std::int64_t key : {0, 511, 1023}) EXPECT_NEAR(out.dv.at(0, 0, key, col), sum / 1024, 1e-7) << key;
  }
}

// Rows whose dout is 0 must have no gradient.
TEST(ABiasOnPaddedRows, GivesNoGradientWhereDoutIsZero) {
  const Inputs in = with_common_bias(DType::kF32, kLowest);
  for (std::int64_t row = 0; row < 70; row += 2) {
    for (std::int64_t col = 0; col < 32; ++col) {
      for (const std::int64_t head : {0, 1}) in.dout.set(0, head, row, col, 0);
    }
  }
  const Outputs out = run(in, "cpu");
  for (const std::int64_t head : {0, 1}) {
    for (std::int64_t row = 0; row < 70; row += 2) {
      for (std::int64_t col = 0; col < 32; ++col) ASSERT_EQ(out.dq.at(0, head, row, col), 0) << row;
    }
  }
  expect_rows_of_p_sum_to_one(in, out);
}

// In float32, the error of lse may be larger than exp tolerates. Backward must therefore compute the row sum relative
// to the row maximum.
TEST(HugeProducts, HaveFiniteGradientsByEveryBackend) {
  for (const double size : {1e5, 1e6, 1e8}) {
    const Inputs in = make_inputs({.seqlen_q = 32, .seqlen_k = 32, .head_dim = 8, .head_dim_v = 8, .seed = 5});
    for (const TensorBuffer* t : {&in.q, &in.k}) {
      t->generate([&, t](auto b, auto h, auto row, auto col) { return size * t->at(b, h, row, col); });
    }
    for (const char* compute : {"reference", "cpu"}) {
      const Outputs out = run(in, compute);
      expect_near("sum of dv", column_sums(out.dv, 0), column_sums(in.dout, 0), 1e-5);
    }
  }
}

// These slopes bring scores close to the float32 limit, where forward and backward may round a score differently.
TEST(HugeSlopes, HaveFiniteGradients) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Inputs in =
        make_inputs({.seqlen_q = 64, .seqlen_k = 5, .head_dim = 8, .head_dim_v = 8, .alibi = true, .seed = seed});
    in.slopes->fill(1e37);
    const Outputs out = run(in, "cpu");
    for (const TensorBuffer* t : {&out.o, &out.dq, &out.dk, &out.dv}) {
      for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x)) << seed;
    }
  }
}

// p below 2^-126 is negligible compared with the largest p of the row, 1. Products with such numbers are many times
// slower, so they must be set to 0. Without this, rows with a few large scores would take thirteen times as long.
TEST(AWeightBelowTheNormalNumbers, IsZero) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Inputs in = make_inputs({.dtype = dtype, .seqlen_q = 40, .seqlen_k = 300, .scale = 1.0});
    in.q.fill(1);
    in.k.generate([](auto, auto, auto key, auto col) { return key == 0 || col != 0 ? 0 : -88.0 - 0.25 * (key % 64); });
    in.v.generate([](auto, auto, auto key, auto) { return key == 0 ? 0 : 6e4; });
    const Outputs out = run(in, "cpu");
    for (std::int64_t col = 0; col < 8; ++col) {
      for (std::int64_t row = 0; row < 40; ++row) ASSERT_EQ(out.o.at(0, 0, row, col), 0) << dtype_name(dtype);
      for (std::int64_t key = 1; key < 300; ++key) ASSERT_EQ(out.dv.at(0, 0, key, col), 0) << dtype_name(dtype);
    }
  }
}

// The call has only some of the keys, but the lse of all keys. The missing part of the row sum must not be treated as a
// rounding error.
TEST(AnLseOfOtherKeysToo, IsTakenAsItIs) {
  const Inputs in = with_common_bias(DType::kF32, -3000);
  const Outputs all = run(in, "cpu");
  AttentionCase c = in.options;
  c.seqlen_k = 512;
  Inputs half = make_inputs(c);
  half.q = in.q, half.dout = in.dout;
  for (const auto& [to, from] : {std::pair{&half.k, &in.k}, {&half.v, &in.v}}) {
    to->generate([&source = *from](auto b, auto h, auto row, auto col) { return source.at(b, h, row, col); });
  }
  half.bias->generate([&](auto b, auto h, auto row, auto key) { return in.bias->at(b, h, row, key); });
  Outputs out = make_outputs(half);
  out.o = all.o, out.lse = all.lse;
  run_backward(half, out, "cpu");
  const auto first_half = [](const TensorBuffer& t) {
    return made(t.dtype(), {1, 1, 512, 32}, [&](auto b, auto h, auto row, auto col) { return t.at(b, h, row, col); });
  };
  expect_near("dv", out.dv.values(), first_half(all.dv).values(), 1e-3);
  expect_near("dk", out.dk.values(), first_half(all.dk).values(), 1e-3);
}

// The parameters are the dtype, the standard deviation of the scores, and head_dim.
class LargeProducts : public testing::TestWithParam<std::tuple<DType, int, int>> {};

INSTANTIATE_TEST_SUITE_P(Cpu, LargeProducts,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(16, 64, 256, 1024), testing::Values(64, 80)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_sd" +
                                  std::to_string(std::get<1>(test.param)) + "_d" +
                                  std::to_string(std::get<2>(test.param));
                         });

TEST_P(LargeProducts, ErrNoMoreThanTheStandard) {
  const auto [dtype, deviation, head_dim] = GetParam();
  const Inputs in = make_inputs({.dtype = dtype,
                                 .seqlen_q = 256,
                                 .seqlen_k = 256,
                                 .head_dim = head_dim,
                                 .head_dim_v = 64,
                                 .scale = deviation / std::sqrt(double(head_dim)),
                                 .seed = 7});
  for (const TensorCheck& check : compare_with_reference(in, "cpu")) {
    const Comparison& c = check.comparison;
    std::printf("%s: error %.3g, standard's %.3g\n", check.name.c_str(), c.error, c.standard);
    if (dtype == DType::kF32 && check.name != "lse") {
      EXPECT_LE(c.error, 2 * c.standard + 1e-6) << check.name;
    }
  }
}

// In exact arithmetic, all keys have the same product with a query row. After scaling by 1 / sqrt(80), the products
// reach 1e5.
TEST(EqualScores, StayEqualHoweverLarge) {
  const Inputs in = make_inputs({.seqlen_q = 64, .seqlen_k = 200, .head_dim = 80, .head_dim_v = 16});
  in.q.generate([](auto, auto, auto, auto col) { return col < 40 ? 300 : 301; });
  in.k.generate([](auto, auto, auto key, auto col) {  // every sum is 301 a + 300 b, with the same a and b for all keys
    return col % 40 == key % 40 ? 1500 : col % 40 == (key + 7) % 40 ? 1200 : 0;
  });
  const Outputs out = run(in, "cpu");
  for (std::int64_t col = 0; col < 16; ++col) {
    double mean = 0;
    for (std::int64_t key = 0; key < 200; ++key) mean += in.v.at(0, 0, key, col) / 200;
    for (const std::int64_t row : {0, 63}) EXPECT_NEAR(out.o.at(0, 0, row, col), mean, 1e-6);
  }
}

struct Overflow {
  const char* name;
  DType dtype = DType::kF32;
  double q = 1, k = 1, scale = 1;
  double softcap = 0, slope = 0;
  double k_step = 0;  // relative growth of k from each key to the next
};

class ScoresBelowEveryFloat : public testing::TestWithParam<Overflow> {};

INSTANTIATE_TEST_SUITE_P(
    Cpu, ScoresBelowEveryFloat,
    testing::Values(Overflow{.name = "products", .q = 8e18, .k = -8e18},
                    Overflow{.name = "products_of_bf16", .dtype = DType::kBF16, .q = 1.1e19, .k = -1.1e19},
                    Overflow{.name = "more_than_float", .q = 3e19, .k = -3e19},
                    Overflow{.name = "softcap", .q = 2, .k = -3, .softcap = 3e38, .k_step = 0.25},
                    Overflow{.name = "scale", .q = 1, .k = -1e-3, .scale = 1e35, .k_step = 1e-6},
                    Overflow{.name = "scale_and_products", .q = 1e4, .k = -1e4, .scale = 1e35},
                    Overflow{.name = "alibi", .slope = 1e38}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(ScoresBelowEveryFloat, HideNoKey) {
  const Overflow& x = GetParam();
  const Inputs in = make_inputs({.dtype = x.dtype,
                                 .seqlen_q = 9,  // with ALiBi, the first rows are far from every key
                                 .seqlen_k = 5,
                                 .head_dim = 4,
                                 .head_dim_v = 8,
                                 .scale = x.scale,
                                 .softcap = x.softcap,
                                 .alibi = x.slope != 0});
  in.q.fill(x.q);
  in.k.generate([&](auto, auto, auto key, auto) { return x.k * (1 + x.k_step * double(key)); });
  if (in.slopes) in.slopes->fill(x.slope);
  const Outputs out = make_outputs(in);
  run_forward(in, out, "cpu");
  const Outputs truth = make_outputs(as_f64(in));
  run_forward(as_f64(in), truth, "reference");
  expect_near("o", out.o.values(), truth.o.values(), property_tolerance(x.dtype));
}

TEST(AHugeSoftcap, LeavesScoresAndGradientsAsTheyAre) {
  for (const double softcap : {5e3, 1e8, 3e38}) {
    const Inputs in = make_inputs(
        {.heads_q = 2, .seqlen_q = 100, .seqlen_k = 200, .head_dim = 64, .head_dim_v = 64, .softcap = softcap});
    std::printf("%s\n", check_against_reference(in, "cpu").c_str());
  }
}

// Rows whose scores overflow must not be confused with rows that see no key. Runs with a mask, with a bias, and with
// neither.
TEST(ScoresBelowEveryFloat, AreToldFromRowsThatSeeNoKey) {
  AttentionCase c = {.seqlen_q = 6, .seqlen_k = 9, .head_dim = 4, .head_dim_v = 8, .scale = 1};
  for (const bool with_bias : {false, true}) {
    for (const bool with_mask : {false, true}) {
      c.bias = with_bias ? std::optional(Broadcast{}) : std::nullopt;
      c.mask = with_mask ? std::optional(Broadcast{}) : std::nullopt;
      const Inputs in = make_inputs(c);
      in.q.fill(3e19);
      in.k.generate([](auto, auto, auto key, auto) { return -3e19 * (1 + 0.125 * double(key)); });
      if (in.bias) in.bias->generate([](auto, auto, auto row, auto) { return row == 1 ? -INFINITY : 0.0; });
      if (in.mask) in.mask->generate([](auto, auto, auto row, auto) { return row == 2 ? 0.0 : 1.0; });
      const Outputs out = make_outputs(in);
      run_forward(in, out, "cpu");
      for (std::int64_t row = 0; row < 6; ++row) {
        const bool sees_none = (with_bias && row == 1) || (with_mask && row == 2);
        EXPECT_EQ(out.o.at(0, 0, row, 3), sees_none ? 0 : in.v.at(0, 0, 0, 3)) << with_bias << with_mask << row;
        EXPECT_EQ(out.lse.at(0, 0, row, 0), -INFINITY);  // the exact lse is below the float32 range
      }
    }
  }
}

// A key whose bias is -inf must have no effect on the row.
class AKeyUnderABiasOfMinusInfinity : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Cpu, AKeyUnderABiasOfMinusInfinity, testing::Values("cpu", "reference"));

TEST_P(AKeyUnderABiasOfMinusInfinity, MayHoldNaN) {
  const Inputs in = make_inputs({.seqlen_q = 5, .seqlen_k = 9, .bias = Broadcast{}, .seed = 3});
  for (std::int64_t row = 0; row < 5; ++row) in.bias->set(0, 0, row, 4, -INFINITY);
  const Outputs want = run(in, GetParam());
  for (std::int64_t col = 0; col < 8; ++col) {
    in.k.set(0, 0, 4, col, NAN);
    in.v.set(0, 0, 4, col, NAN);
  }
  const Outputs out = run(in, GetParam());
  expect_near("o", out.o.values(), want.o.values(), 1e-6);
  expect_near("dq", out.dq.values(), want.dq.values(), 1e-6);
  for (std::int64_t col = 0; col < 8; ++col) EXPECT_EQ(out.dk.at(0, 0, 4, col), 0);
}

// Sums are in float32. The mean of n equal values is therefore not exactly this value, but must be within the
// documented bound.
TEST(UniformWeights, OverOneRepeatedValueGiveItToTwoInAMillion) {
  const Inputs in = make_inputs({.seqlen_q = 3, .seqlen_k = 5000, .head_dim = 8, .head_dim_v = 8});
  in.q.fill(0);
  in.v.fill(0.7f);
  const Outputs out = make_outputs(in);
  run_forward(in, out, "cpu");
  for (const double x : out.o.values()) EXPECT_NEAR(x, 0.7f, 1.4e-6);
}

}  // namespace
}  // namespace attend::test
