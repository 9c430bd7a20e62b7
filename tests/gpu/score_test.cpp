// Compares score functions on the GPU with the float64 reference, in every family and for every function of the
// cookbook.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/score_function_state.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "gpu/families.hpp"
#include "gpu/own_functions.hpp"
#include "score/cookbook.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

/// Allowed errors, relative to the largest magnitude.
struct Budget {
  double results, gradients;
};

/// Returns the allowed errors. In half precision they cover the rounding of o, p and ds to 16 bits.
Budget budget_of(DType dtype) {
  if (dtype == DType::kF32) return {1e-5, 2e-5};
  return dtype == DType::kBF16 ? Budget{0x1p-7, 0x1p-5} : Budget{0x1p-10, 0x1p-8};
}

/// Returns whether the family supports the case's score function. The family must already support the case's dtype and
/// head_dim.
bool takes_function(std::string_view family, const ScoreCase& score) {
  if (score.attention.dtype == DType::kF32) return family == "simt";
  const ScoreFunction function = function_of(score, {DeviceType::kCUDA, 0});
  const core::CustomScore& custom = function.state()->custom;
  return family != "sm90_backward" || !custom.may_be_huge || !custom.traits.transforms;
}

bool has_captured_gradients(std::string_view family) {
  return family == "simt" || family == "sm80_backward";
}

/// Runs each case in every family of this GPU that supports it. Compares all results with one run of the reference.
class OfAllFamilies : public GpuTest {
 protected:
  /// @param in_cpp the score function in C++. This version is used to check gradients of captures in the families that
  /// compute such gradients for all functions.
  void check(const ScoreCase& score, const Budget& budget, std::string_view left_out = "",
             const OracleFunction& in_cpp = nullptr) {
    const Inputs in = make_inputs(score.attention);
    const ScoreFunction function = function_of(score, {DeviceType::kCUDA, 0});
    std::optional<ScoreResults> truth;
    for (const char* family : kFamilies) {
      if (!cuda::find_family(family)->supports(cuda::device_info(0).arch())) continue;
      Count& count = counts_[family];
      count.may_take = count.may_take || takes_function(family, score);
      if (family == left_out || !lack_of(family, in, &function).empty()) continue;
      SCOPED_TRACE(family + (" " + describe(score.attention)) + " " + score.text);
      const bool with_captures = in_cpp != nullptr && has_captured_gradients(family);
      if (!truth && in_cpp != nullptr) truth = oracle_results(score, as_f64(in), in_cpp);
      if (!truth) truth = run_score(score, as_f64(in), "reference", false);
      const ScoreResults got = run_score(score, in, family, with_captures);
      const std::string line = expect_close(got, *truth, budget.results, budget.gradients);
      std::printf("%s %s:%s\n", family, describe(score.attention).c_str(), line.c_str());
      ++count.cases;
    }
  }

  /// Checks that each family supported at least this many cases. A family may support none if it does not support such
  /// functions or the dtype.
  void expect_cases(int least_of_all, const std::map<std::string, int>& least_of = {}) const {
    EXPECT_GE(counts_.size(), 1);
    for (const auto& [family, count] : counts_) {
      std::printf("%s: %d cases\n", family.c_str(), count.cases);
      const auto found = least_of.find(family);
      const int least = found == least_of.end() ? least_of_all : found->second;
      EXPECT_TRUE(count.may_take ? count.cases >= least : count.cases == 0) << family << ": " << count.cases;
    }
  }

 private:
  struct Count {
    int cases = 0;
    bool may_take = false;
  };
  std::map<std::string, Count> counts_;
};

/// Returns the problems on which the functions of the cookbook run.
std::vector<AttentionCase> cases(DType dtype) {
  std::vector<AttentionCase> all(6, base_case(dtype));
  all[1].head_dim = 128, all[1].head_dim_v = 128, all[1].causal = true, all[1].seqlen_q = 300;
  all[2].varlen_q = {5, 0, 131, 12}, all[2].varlen_k = {9, 4, 0, 240};
  all[3].causal = true, all[3].dropout_p = 0.2, all[3].head_dim = 40, all[3].head_dim_v = 72;
  all[4].head_dim = 192, all[4].head_dim_v = 136, all[4].window_left = 70, all[4].window_right = 30;
  all[5].seqlen_q = 1, all[5].head_dim = 128, all[5].head_dim_v = 128, all[5].heads_k = 1;
  return all;
}

using DTypeAndNumber = std::tuple<DType, std::size_t>;
const auto kDTypeAndNumber = [](const auto& test) {
  return std::string(dtype_name(std::get<0>(test.param))) + "_" + std::to_string(std::get<1>(test.param));
};

/// The number selects one function of the cookbook.
class GpuScores : public OfAllFamilies, public testing::WithParamInterface<DTypeAndNumber> {};

INSTANTIATE_TEST_SUITE_P(All, GpuScores,
                         testing::Combine(testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                                          testing::Range<std::size_t>(0, cookbook().size())),
                         kDTypeAndNumber);

/// Runs the first problem, and one other problem that changes with the number. Two problems are enough, because a
/// family uses the same code for all functions of a shape. simt uses the same code for all dtypes and sizes, so in half
/// types it runs only the first problem.
TEST_P(GpuScores, OfTheCookbookIsTheReference) {
  const auto& [dtype, number] = GetParam();
  const std::vector<AttentionCase> all = cases(dtype);
  const std::size_t turn = 1 + (number + (dtype == DType::kF16 ? 2 : 0)) % (all.size() - 1);
  for (const std::size_t n : {std::size_t{0}, turn}) {
    const ScoreCase score = with_recipe(all[n], cookbook()[number]);
    check(score, budget_of(dtype), n > 0 && dtype != DType::kF32 ? "simt" : "",
          oracle_function(score, cookbook()[number].function));
  }
  expect_cases(1);
}

/// Score functions with varying slopes, with some hidden keys, and with capture elements that many scores load.
constexpr const char* kTexts[] = {
    "let s = gain[h] * tanh(score / 2) + table[b, clamp(q - k, -2, 2) + 2];\n(q + 3 * k) % 7 == 2 ? -inf : s",
    "score + gain[h] * float((q * 5 + k) % 3)"};
constexpr std::size_t kParts = 4;  // number of parts into which the cases with options are divided

/// The number selects a function text and a part of the cases.
class GpuScoreOptions : public OfAllFamilies, public testing::WithParamInterface<DTypeAndNumber> {};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreOptions,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Range<std::size_t>(0, kParts* std::size(kTexts))),
                         kDTypeAndNumber);

TEST_P(GpuScoreOptions, ComposeWithAFunction) {
  const auto& [dtype, number] = GetParam();
  for (std::size_t n = 0; AttentionCase c : option_cases(dtype)) {
    if (n++ % kParts != number % kParts) continue;
    c.head_dim = c.head_dim_v = 64;
    check({c,
           kTexts[number / kParts],
           {{"gain", DType::kF32, {c.heads_q}, normal_values(c.heads_q, 5), CaptureStrides::kNegative},
            {"table", DType::kF32, {c.num_sequences(), 5}, normal_values(5 * c.num_sequences(), 6)}}},
          budget_of(dtype));
  }
  expect_cases(2);
}

/// All scores of a row are nearly the lowest float. The low value is a constant of the function or an element of a
/// capture. p must be the same for all keys.
class GpuScoreEdges : public OfAllFamilies, public testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreEdges, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(GpuScoreEdges, RowsOfHugeScoresHaveTheirGradients) {
  const AttentionCase c = cases(GetParam()).front();
  const CaptureBuffer hidden("hidden", DType::kF32, {2}, {-3.4028234e38, 0});
  for (const char* text : {"q % 2 == 0 ? -1e9 : score", "q % 2 == 0 ? -1e38 : score", "q % 2 == 0 ? 1e9 : score",
                           "score + hidden[q % 2]"}) {
    check({c, text, {hidden}}, budget_of(GetParam()));
  }
  for (const std::size_t n : {1, 4}) {  // problem 1 is causal and problem 4 has a window, so some rows see few keys
    check({cases(GetParam())[n], "score + hidden[q % 2]", {hidden}}, budget_of(GetParam()));
  }
  // In float32 a score of about 3000 is rounded to a multiple of 2^-12, which can change p by this much.
  const double rounding = GetParam() == DType::kF32 ? 3000 * 0x1p-23 : 0;
  const Budget budget = budget_of(GetParam());
  check({c, "score - 3000", {hidden}}, {budget.results + rounding, budget.gradients + rounding});
  expect_cases(5, {{"sm90_backward", 2}});  // sm90_backward supports only the two functions with slope 1
}

/// A function may be NaN for rows and keys after the end of the sequence, and for keys that a row does not see.
TEST_P(GpuScoreEdges, NaNOfWhatIsNotSeenIsNothing) {
  for (const AttentionCase& c : cases(GetParam())) {
    check({c, "score - log(float(q_len - q)) - log(float(k_len - k))", {}}, budget_of(GetParam()));
    if (c.causal) check({c, "score - log(float(q + k_len - q_len - k + 1))", {}}, budget_of(GetParam()));
  }
  expect_cases(2);
}

/// Returns functions of slope 1. The element that a function loads depends only on the distance q - k, only on the key,
/// only on the row, on none of these, or on both row and key.
std::vector<Recipe> functions_with_gradients() {
  using Captures = OracleCaptures;
  const CaptureBuffer table("table", DType::kF32, {4, 16}, normal_values(64, 1)),
      of_keys("of_keys", DType::kF32, {4, 240}, normal_values(960, 2)),
      of_rows("of_rows", DType::kBF16, {300}, normal_values(300, 3)),
      slope("slope", DType::kF32, {4}, {0.1, 0.2, 0, 1}), pairs("pairs", DType::kF16, {7, 11}, normal_values(77, 4)),
      shift("shift", DType::kF32, {}, {0.3});
  const auto of = [](const CaptureBuffer& one) {
    return [one](const AttentionCase&) { return std::vector<CaptureBuffer>{one}; };
  };
  const auto bucket = [](Index distance) { return std::clamp<Index>(distance, -8, 7) + 8; };
  return {{"distances", "score + table[h][clamp(q - k, -8, 7) + 8]", of(table),
           [=](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("table", {at.h, bucket(at.q - at.k)});
           }},
          {"slopes", "score - slope[h] * abs(q + k_len - q_len - k) / 8", of(slope),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score - c.load("slope", {at.h}) * Dual(std::abs(at.q + at.k_len - at.q_len - at.k)) / Dual(8);
           }},
          {"keys", "score + of_keys[b][k]", of(of_keys),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("of_keys", {at.b, at.k});
           }},
          {"rows", "of_rows[q] * 0.5 + score", of(of_rows),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("of_rows", {at.q}) * Dual(0.5);
           }},
          {"pairs", "score + pairs[q % 7][(q + k) % 11]", of(pairs),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("pairs", {at.q % 7, (at.q + at.k) % 11});
           }},
          {"one", "k % 3 == 1 ? score + shift * 2 : score", of(shift),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return at.k % 3 == 1 ? score + c.load("shift", {}) * Dual(2) : score;
           }},
          {"two", "score + table[h][clamp(k - q, -8, 7) + 8] + of_keys[b][k]",
           [=](const AttentionCase&) {
             return std::vector<CaptureBuffer>{table, of_keys};
           },
           [=](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("table", {at.h, bucket(at.k - at.q)}) + c.load("of_keys", {at.b, at.k});
           }},
          {"twice", "score + table[h][clamp(q - k, -8, 7) + 8] + table[0][clamp(k - q, -8, 7) + 8] / 2", of(table),
           [=](const Dual& score, const ScorePlace& at, const Captures& c) {
             return score + c.load("table", {at.h, bucket(at.q - at.k)}) +
                    c.load("table", {0, bucket(at.k - at.q)}) / Dual(2);
           }},
          // The capture appears only in the condition, so its gradient is 0.
          {"condition", "float(k) > float(q) + 500 * slope[h] ? -inf : score", of(slope),
           [](const Dual& score, const ScorePlace& at, const Captures& c) {
             return at.k > at.q + 500 * c.load("slope", {at.h}).value ? Dual(-INFINITY) : score;
           }}};
}

class GpuScoreGradients : public GpuTest, public testing::WithParamInterface<DTypeAndNumber> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_backward";
  }
};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreGradients,
                         testing::Combine(testing::Values(DType::kF16, DType::kBF16),
                                          testing::Range<std::size_t>(0, 9)),
                         kDTypeAndNumber);

TEST_P(GpuScoreGradients, OfCapturesAreTheReference) {
  const auto& [dtype, number] = GetParam();
  const Recipe recipe = functions_with_gradients()[number];
  int compared = 0;
  for (const AttentionCase& c : cases(dtype)) {
    if (std::max(c.head_dim, c.head_dim_v) > 128) continue;
    SCOPED_TRACE(recipe.name + " " + describe(c));
    const ScoreCase score = with_recipe(c, recipe);
    const Inputs in = make_inputs(c);
    const ScoreResults truth = oracle_results(score, as_f64(in), oracle_function(score, recipe.function));
    const ScoreResults got = run_score(score, in, "sm90_backward");
    EXPECT_EQ(got.captures.size(), score.captures.size());
    const Budget budget = budget_of(dtype);
    std::printf("%s:%s\n", describe(c).c_str(), expect_close(got, truth, budget.results, budget.gradients).c_str());
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

class GpuScoreFamilies : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(All, GpuScoreFamilies, testing::ValuesIn(kFamilies), kFamilyName);

/// A derivative may be infinite if ds is 0. An example is sqrt at 0 in a row whose dout is 0. Subscripts that are NaN
/// are clamped into range.
TEST_P(GpuScoreFamilies, InfiniteSlopesAndNaN) {
  AttentionCase c = cases(DType::kBF16)[1];
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
  for (std::size_t n = 0; n < got.dq.size(); ++n) {  // dq of each head's first row is 0, because its dout is 0
    if (static_cast<std::int64_t>(n) / c.head_dim % c.seqlen_q == 0) {
      ASSERT_EQ(got.dq[n], 0) << n;
    }
  }
  in.q.generate([&](auto b, auto h, auto row, auto col) { return row == 3 ? NAN : values.at(b, h, row, col); });
  const ScoreCase subscript = {c,
                               "score + far[int(clamp(score, 1000000.5, 1000005)) - 1000000]",
                               {{"far", DType::kF32, {8}, std::vector<double>(8, 0.5)}}};
  const ScoreFunction other = function_of(subscript, {DeviceType::kCUDA, 0});
  if (lack_of(GetParam(), in, &other).empty()) (void)run_score(subscript, in, GetParam(), false);
}

}  // namespace
}  // namespace attend::test
