// Score functions on the GPU against the reference in float64: every family, every function of the cookbook.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>

#include "core/score_function_state.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "gpu/families.hpp"
#include "score/cookbook.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

/// A family and what differs from test to test: each compiles kernels of its own.
class OfFamily : public GpuTest, public testing::WithParamInterface<std::tuple<const char*, std::size_t>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !cuda::find_family(family())->supports(cuda::device_info(0).arch())) {
      GTEST_SKIP() << "no instructions for " << family();
    }
  }
  [[nodiscard]] static const char* family() { return std::get<0>(GetParam()); }
  [[nodiscard]] static std::size_t number() { return std::get<1>(GetParam()); }
};

const auto kFamilyAndNumber = [](const auto& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param));
};

/// number(): of a function of the cookbook.
class GpuScores : public OfFamily {};

INSTANTIATE_TEST_SUITE_P(All, GpuScores,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::Range<std::size_t>(0, cookbook().size())),
                         kFamilyAndNumber);

/// With slopes of every kind, a hidden key here and there, and captures that many scores load.
constexpr const char* kTexts[] = {
    "let s = gain[h] * tanh(score / 2) + table[b, clamp(q - k, -2, 2) + 2];\n(q + 3 * k) % 7 == 2 ? -inf : s",
    "score + gain[h] * float((q * 5 + k) % 3)"};

/// number(): of a dtype and a text.
class GpuScoreOptions : public OfFamily {};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreOptions,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::Range<std::size_t>(0, std::size(kDTypes) * std::size(kTexts))),
                         kFamilyAndNumber);

/// Relative to the largest magnitude: of results, of gradients. Of half types it is their own rounding of o, p and ds.
using Budget = std::pair<double, double>;

Budget budget_of(DType dtype) {
  if (dtype == DType::kF32) return {1e-5, 2e-5};
  return dtype == DType::kBF16 ? Budget{0x1p-7, 0x1p-5} : Budget{0x1p-10, 0x1p-8};
}

/// Where one row or key is much of a sum: dropping, few keys, rows that are all alike.
Budget wide_budget_of(DType dtype) {
  return dtype == DType::kF32 ? Budget{1e-5, 1e-4} : Budget{0x1p-6, 0x1p-4};
}

/// Runs a case where the family takes it; returns whether it does.
bool check(const char* family, const ScoreCase& score, const Budget& budget) {
  const Inputs in = make_inputs(score.attention);
  const ScoreFunction function = function_of(score, {DeviceType::kCUDA, 0});
  if (!lack_of(family, in, &function).empty()) return false;
  SCOPED_TRACE(describe(score.attention) + " " + score.text);
  const auto [tolerance, gradient_tolerance] = budget;
  const ScoreResults truth = run_score(score, as_f64(in), "reference", false);
  const std::string line = expect_close(run_score(score, in, family, false), truth, tolerance, gradient_tolerance);
  std::printf("%s %s:%s\n", family, describe(score.attention).c_str(), line.c_str());
  return true;
}

/// Problems of the cookbook. simt, whose code is the same for all types and sizes, has few of half types.
std::vector<AttentionCase> cases(DType dtype, std::string_view family) {
  const AttentionCase base = {.dtype = dtype,
                              .batch = 2,
                              .heads_q = 4,
                              .heads_k = 2,
                              .seqlen_q = 150,
                              .seqlen_k = 277,
                              .head_dim = 64,
                              .head_dim_v = 64,
                              .dlse = true,
                              .seed = 7};
  std::vector<AttentionCase> all(6, base);
  all[1].head_dim = 128, all[1].head_dim_v = 128, all[1].causal = true, all[1].seqlen_q = 300;
  all[2].varlen_q = {5, 0, 131, 12}, all[2].varlen_k = {9, 4, 0, 240};
  all[3].causal = true, all[3].dropout_p = 0.2, all[3].head_dim = 40, all[3].head_dim_v = 72;
  all[4].head_dim = 192, all[4].head_dim_v = 136, all[4].window_left = 70, all[4].window_right = 30;
  all[5].seqlen_q = 1, all[5].head_dim = 128, all[5].head_dim_v = 128, all[5].heads_k = 1;
  if (family == "simt" && dtype != DType::kF32) all.resize(1);
  return all;
}

/// Does the family take the cookbook's case in general?
bool takes(const char* family, const AttentionCase& c, const ScoreFunction& function) {
  const bool is_backward = std::string_view(family) == "sm90_backward";
  if (c.dtype == DType::kF32) return std::string_view(family) == "simt";
  return !(is_backward && function.state()->custom.may_be_huge);
}

TEST_P(GpuScores, OfTheCookbookIsTheReference) {
  const Recipe& recipe = cookbook()[number()];
  int checked = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    int of_dtype = 0;
    bool is_taken = false;
    for (const AttentionCase& c : cases(dtype, family())) {
      const ScoreCase score = with_recipe(c, recipe);
      is_taken = takes(family(), c, function_of(score, {DeviceType::kCUDA, 0}));
      of_dtype += check(family(), score, budget_of(dtype)) ? 1 : 0;
    }
    EXPECT_TRUE(is_taken ? of_dtype >= 1 : of_dtype == 0) << dtype_name(dtype) << ": " << of_dtype;
    checked += of_dtype;
  }
  std::printf("%s: %d cases\n", recipe.name.c_str(), checked);
}

class GpuScoreEdges : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreEdges, testing::ValuesIn(kFamilies), kFamilyName);

/// Rows all of whose scores are nearly as low as floats go, by a constant and by a capture: p is the same for all keys.
TEST_P(GpuScoreEdges, RowsOfHugeScoresHaveTheirGradients) {
  int checked = 0;
  for (const DType dtype : kDTypes) {
    AttentionCase c = cases(dtype, GetParam()).front();
    for (const char* text : {"q % 2 == 0 ? -1e9 : score", "q % 2 == 0 ? -1e38 : score", "q % 2 == 0 ? 1e9 : score",
                             "score + hidden[q % 2]", "score - 3000"}) {
      const ScoreCase score = {c, text, {{"hidden", DType::kF32, {2}, {-3.4028234e38, 0}}}};
      checked += check(GetParam(), score, wide_budget_of(dtype)) ? 1 : 0;
    }
  }
  const bool is_refused = std::string_view(GetParam()) == "sm90_backward";
  EXPECT_TRUE(is_refused ? checked == 0 : checked >= 5) << checked;
}

/// Where ds is 0 the derivative may be infinite: sqrt at 0, in a row whose dout is 0. Subscripts of NaN are within.
TEST_P(GpuScoreEdges, InfiniteSlopesAndNaN) {
  AttentionCase c = cases(DType::kBF16, GetParam())[1];
  c.seqlen_q = c.seqlen_k, c.dlse = false;
  const ScoreCase score = {c, "sqrt(abs(score))"};
  const Inputs in = make_inputs(c);
  const TensorBuffer of_o = make_inputs(c).dout;
  in.dout.generate([&](auto b, auto h, auto row, auto col) { return row == 0 ? 0.0 : of_o.at(b, h, row, col); });
  const TensorBuffer values = make_inputs(c).q;
  in.q.generate([&](auto b, auto h, auto row, auto col) { return row == 0 ? 0.0 : values.at(b, h, row, col); });
  const ScoreFunction function = function_of(score, {DeviceType::kCUDA, 0});
  ASSERT_EQ(lack_of(GetParam(), in, &function), "");
  const ScoreResults got = run_score(score, in, GetParam(), false);
  for (const double x : got.o) ASSERT_TRUE(std::isfinite(x));
  for (std::size_t n = 0; n < got.dq.size(); ++n) {  // of the first row
    if (static_cast<std::int64_t>(n) / c.head_dim % c.seqlen_q == 0) ASSERT_EQ(got.dq[n], 0) << n;
  }
  in.q.generate([&](auto b, auto h, auto row, auto col) { return row == 3 ? NAN : values.at(b, h, row, col); });
  const ScoreCase subscript = {c,
                               "score + far[int(clamp(score, 1000000.5, 1000005)) - 1000000]",
                               {{"far", DType::kF32, {8}, std::vector<double>(8, 0.5)}}};
  const ScoreFunction other = function_of(subscript, {DeviceType::kCUDA, 0});
  if (lack_of(GetParam(), in, &other).empty()) (void)run_score(subscript, in, GetParam(), false);
}

TEST_P(GpuScoreOptions, ComposeWithAFunction) {
  const DType dtype = kDTypes[number() % std::size(kDTypes)];
  const char* const text = kTexts[number() / std::size(kDTypes)];
  int checked = 0;
  bool is_taken = false;
  for (AttentionCase c : option_cases(dtype)) {
    c.head_dim = c.head_dim_v = 64;
    const ScoreCase score = {
        c,
        text,
        {{"gain", DType::kF32, {c.heads_q}, normal_values(c.heads_q, 5), CaptureStrides::kNegative},
         {"table", DType::kF32, {c.num_sequences(), 5}, normal_values(5 * c.num_sequences(), 6)}}};
    is_taken = takes(family(), c, function_of(score, {DeviceType::kCUDA, 0}));
    checked += check(family(), score, wide_budget_of(dtype)) ? 1 : 0;
  }
  std::printf("%d cases\n", checked);
  EXPECT_TRUE(is_taken ? checked >= 10 : checked == 0) << checked;
}

}  // namespace
}  // namespace attend::test
