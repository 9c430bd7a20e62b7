// Compares the `cpu` backend with the float64 reference. Covers every option in a pairwise covering array, and the
// fixed error limits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "support/compare.hpp"
#include "support/option_cases.hpp"
#include "support/option_pairs.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kBackend = "cpu";

constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
struct Lengths {
  std::int64_t q, k;
};

TEST(CoveringArrayOfOptions, MissesNoCompatiblePair) {
  std::printf("%zu cases\n", option_pair_cases().size());
  EXPECT_EQ(uncovered_option_pairs(), 0);
}

class EveryOptionPair : public testing::TestWithParam<AttentionCase> {};

TEST_P(EveryOptionPair, StaysInBudget) {
  const std::string line = check_against_reference(make_inputs(GetParam()), kBackend);
  std::printf("%s\n  %s\n", describe(GetParam()).c_str(), line.c_str());
}

/// Names a test instance. The name contains the dtype, so that runs for one bf16 method can select the bf16 cases.
const auto kIndexAndType = [](const testing::TestParamInfo<AttentionCase>& test) {
  return std::to_string(test.index) + "_" + dtype_name(test.param.dtype);
};

INSTANTIATE_TEST_SUITE_P(CoveringArray, EveryOptionPair, testing::ValuesIn(option_pair_cases()), kIndexAndType);

// These tiny cases have one option each. If a case of the covering array fails, the tiny cases show which option causes
// the failure.
INSTANTIATE_TEST_SUITE_P(OneOptionF32, EveryOptionPair, testing::ValuesIn(option_cases(DType::kF32)), kIndexAndType);
INSTANTIATE_TEST_SUITE_P(OneOptionBF16, EveryOptionPair, testing::ValuesIn(option_cases(DType::kBF16)), kIndexAndType);

// Tests head_dims in steps that reach each remainder of the vector width, each with a different head_dim_v.
class EveryHeadDim : public testing::TestWithParam<int> {};

TEST_P(EveryHeadDim, StaysInBudget) {
  AttentionCase c = {.dtype = kDtypes[GetParam() % 3],
                     .batch = 1,
                     .heads_q = 2,
                     .heads_k = 1,
                     .seqlen_q = 33,
                     .seqlen_k = 35,
                     .head_dim = GetParam(),
                     .head_dim_v = (GetParam() * 7) % 130 + 1,
                     .causal = true};
  check_against_reference(make_inputs(c), kBackend);
}

INSTANTIATE_TEST_SUITE_P(To130, EveryHeadDim, testing::Range(1, 131, ATTEND_TEST_STRIDE));
INSTANTIATE_TEST_SUITE_P(Sparse, EveryHeadDim, testing::Values(144, 176, 191, 224, 255, 257, 320, 384, 511, 512));

// Tests the textbook implementation with the few options that it supports.
TEST(Naive, StaysInBudget) {
  for (const bool causal : {false, true}) {
    for (const Lengths lengths : {Lengths{0, 3}, Lengths{3, 0}, Lengths{1, 1}, Lengths{33, 70}, Lengths{70, 33}}) {
      check_against_reference(make_inputs({.batch = 2,
                                           .heads_q = 6,
                                           .heads_k = 2,
                                           .seqlen_q = lengths.q,
                                           .seqlen_k = lengths.k,
                                           .head_dim = 40,
                                           .head_dim_v = 24,
                                           .causal = causal,
                                           .dlse = true,
                                           .layout = CaseLayout::kBSHD}),
                              "cpu_naive");
    }
  }
}

/// The largest |a - b|, and the largest |b|.
struct Distance {
  double error = 0, scale = 0;
  Distance(const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t n = 0; n < a.size(); ++n) {
      if (!(std::abs(a[n] - b[n]) <= error)) error = std::abs(a[n] - b[n]);
      scale = std::max(scale, std::abs(b[n]));
    }
  }
};

AttentionCase seed_shape(DType dtype, bool causal) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 8,
          .heads_k = 8,
          .seqlen_q = 512,
          .seqlen_k = 512,
          .head_dim = 64,
          .head_dim_v = 64,
          .causal = causal,
          .seed = 42};
}

class HardRules : public testing::TestWithParam<bool> {};

TEST_P(HardRules, F32AtTheSeedShape) {
  const Inputs in = make_inputs(seed_shape(DType::kF32, GetParam()));
  const Outputs truth = run(as_f64(in), "reference");
  const Outputs out = run(in, kBackend);
  const Distance o(out.o.values(), truth.o.values());
  std::printf("o: max abs error %.3g, allowed %.3g\n", o.error, kSeedShapeForwardAbsolute);
  EXPECT_TRUE(o.error <= kSeedShapeForwardAbsolute);
  const std::pair<const TensorBuffer*, const TensorBuffer*> gradients[] = {
      {&out.dq, &truth.dq}, {&out.dk, &truth.dk}, {&out.dv, &truth.dv}};
  for (const auto& [got, want] : gradients) {
    const Distance d(got->values(), want->values());
    std::printf("gradient: max abs error %.3g, allowed %.3g\n", d.error, kSeedShapeGradientAbsolute);
    EXPECT_TRUE(d.error <= kSeedShapeGradientAbsolute);
  }
}

TEST_P(HardRules, F32OnNormalInputs) {
  for (const std::int64_t head_dim : {16, 64, 128, 256}) {
    for (const Lengths lengths : {Lengths{40, 33}, Lengths{128, 300}, Lengths{33, 1500}}) {
      const AttentionCase c = {.batch = 1,
                               .heads_q = 2,
                               .heads_k = 2,
                               .seqlen_q = lengths.q,
                               .seqlen_k = lengths.k,
                               .head_dim = head_dim,
                               .head_dim_v = head_dim,
                               .causal = GetParam(),
                               .seed = 3};
      SCOPED_TRACE(describe(c));
      const Inputs in = make_inputs(c);
      const Outputs truth = run(as_f64(in), "reference");
      const Outputs out = run(in, kBackend);
      EXPECT_TRUE(Distance(out.o.values(), truth.o.values()).error <= kF32ForwardAbsolute);
      const std::pair<const TensorBuffer*, const TensorBuffer*> gradients[] = {
          {&out.dq, &truth.dq}, {&out.dk, &truth.dk}, {&out.dv, &truth.dv}};
      for (const auto& [got, want] : gradients) {
        const Distance d(got->values(), want->values());
        EXPECT_TRUE(d.error <= kF32GradientRelative * d.scale) << d.error << " of " << d.scale;
      }
    }
  }
}

// Error limit for forward and backward: twice the standard implementation's error, plus 1e-5 of the largest magnitude.
TEST_P(HardRules, HalfTypesAtTwiceTheStandard) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    AttentionCase c = seed_shape(dtype, GetParam());
    c.batch = 1;
    const Inputs in = make_inputs(c);
    const Outputs truth = run(as_f64(in), "reference");
    const Standard standard = run_standard(in);
    const Outputs out = run(in, kBackend);
    const auto check = [&](const char* name, const TensorBuffer& got, const TensorBuffer& want,
                           const StandardTensor& s) {
      const Distance ours(got.values(), want.values());
      const double allowed = kHalfRuleFactor * Distance(s.value, want.values()).error + kHalfRuleFloor * ours.scale;
      std::printf("%s %s: error %.3g, allowed %.3g\n", dtype_name(dtype), name, ours.error, allowed);
      EXPECT_TRUE(ours.error <= allowed) << dtype_name(dtype) << " " << name;
    };
    check("o", out.o, truth.o, standard.o);
    check("dq", out.dq, truth.dq, standard.dq);
    check("dk", out.dk, truth.dk, standard.dk);
    check("dv", out.dv, truth.dv, standard.dv);
  }
}

INSTANTIATE_TEST_SUITE_P(FullAndCausal, HardRules, testing::Bool());

}  // namespace
}  // namespace attend::test
