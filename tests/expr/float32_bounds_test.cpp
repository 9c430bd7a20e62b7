// Tests the float32 bounds that GPU tests use as allowed errors. The bounds must contain the exact values, be narrow,
// and handle steps.
#include "expr/float32_bounds.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>

#include "expr/derivative.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Id;
using expr::Point;

Bounds bounds_of(const std::string& text, double score, ScoreMath math = ScoreMath::kExact) {
  const Function f = expr::parse("text", text, some_captures(), expr::Type::kFloat);
  Float32Bounds bounds(f.graph, {f.result}, element_of_capture, math);
  return bounds.at({score, 1, 2, 30, 11, 40, 40})[0];
}

class RandomBounds : public testing::TestWithParam<ScoreMath> {};
INSTANTIATE_TEST_SUITE_P(All, RandomBounds, testing::Values(ScoreMath::kExact, ScoreMath::kFast));

TEST_P(RandomBounds, HoldTheExactValues) {
  constexpr int kFunctions = 300, kPoints = 40;
  std::mt19937_64 generator(8);
  int all = 0, decided = 0, narrow = 0;
  for (int n = 0; n < kFunctions; ++n) {
    RandomText random(static_cast<std::uint64_t>(n) + 5000, false);
    const std::string text = random.of_float(3);
    Function f = expr::parse("text", text, some_captures(), expr::Type::kFloat);
    const expr::Derivatives by = expr::differentiate(f.graph, f.result);
    const std::vector<Id> nodes = {f.result, by.by_score};
    expr::Evaluator evaluator(f.graph, nodes, element_of_capture);
    Float32Bounds allowed(f.graph, nodes, element_of_capture, GetParam());
    for (int p = 0; p < kPoints; ++p) {
      const Point point = random_point(generator);
      const std::span<const double> exact = evaluator.at(point);
      const std::span<const Bounds> bounds = allowed.at(point);
      for (std::size_t i = 0; i < nodes.size(); ++i, ++all) {
        ASSERT_TRUE(bounds[i].contains(exact[i]))
            << text << ": " << exact[i] << " is not from " << bounds[i].low << " to " << bounds[i].high;
        decided += bounds[i].is_decided ? 1 : 0;
        narrow += bounds[i].is_decided && !(bounds[i].high - bounds[i].low > 1e-4 * (1 + std::abs(exact[i]))) ? 1 : 0;
      }
    }
  }
  std::printf("%d values: %d decided, %d of them to 1e-4\n", all, decided, narrow);
  EXPECT_GT(decided, all * 9 / 10);
  EXPECT_GT(narrow, all * 9 / 10);
}

TEST(Float32Bounds, KnowWhereStepsAreDecided) {
  const struct {
    const char* text;
    double score;
    bool is_decided;
  } cases[] = {
      {"floor(score)", 2, true},
      {"floor(score + 0.5)", 1.5, true},
      // float32 cannot represent 0.1, so the product may lie on either side of the step.
      {"floor(score * 0.1 * 10)", 2, false},
      {"floor(score * 0.1 * 10)", 2.1, true},
      {"score * 0.1 < 0.2 ? 1 : 2", 2, false},
      {"score * 0.1 < 0.2 ? 1 : 1", 2, true},  // both branches are 1
      {"score * 0.1 < 0.25 ? 1 : 2", 2, true},
      {"sign(exp(score) - exp(score + 0.0))", 1, false},
      {"sign(score - score)", 1.5, true},
      {"1 / (score - 2)", 2, true},  // the result is infinite in float32 too
      {"1 / (exp(score) - 1)", 0, false},
      {"log(sin(score + 0.1))", 3.041592653589793, false},
      {"log(-exp(score))", 1, true},
      {"score % 0.1", 0.3, false},
      {"score % 0.5", 1.5, true},
      {"score // 0.1", 0.3, false},
      {"tan(score * 1.0)", 1.5707963267948966, false},
      {"pow(score * 0.1, 0.5)", -1, true},
      {"exp(score)", 100, false},  // the result exceeds the float32 range
      {"exp(-score)", 100, true},  // the result may be flushed to 0
      {"table[int(score * 0.1 * 10)][3]", 2, false},
      {"min(score * 0.1, 0.2)", 2, true},
      {"cap == cap && floor(score * 0.1 * 10) < 7 ? 1 : 2", 2, false},
      // The first condition is false, so the second one does not matter.
      {"q < k && floor(score * 0.1 * 10) < 7 ? 1 : 2", 2, true},
  };
  for (const auto& [text, score, is_decided] : cases) EXPECT_EQ(bounds_of(text, score).is_decided, is_decided) << text;
}

/// If the bounds were much wider than a few roundings, they would accept wrong functions. If they were narrower, they
/// would reject right functions.
TEST(Float32Bounds, AreAsWideAsTheirRoundings) {
  const struct {
    const char* text;
    double exact, exact_width, fast_width;
  } cases[] = {
      {"score + 1", 2.25, 0, 0},
      {"score * score", 1.5625, 0, 0},
      {"score / 3", 1.25 / 3, 0x1p-23, 0x1p-19},
      {"score - 0.1", 1.15, 0x1p-22, 0x1p-22},
      {"exp(score)", std::exp(1.25), 0x1p-20 * 3.5, 0x1p-19 * 3.5},
      {"log(score)", std::log(1.25), 0x1p-20, 0x1p-19},
      {"tanh(score)", std::tanh(1.25), 0x1p-20, 0x1p-18},
      {"1000 * (tanh(score) - 0.8)", 1000 * (std::tanh(1.25) - 0.8), 0x1p-9, 0x1p-8},
  };
  for (const auto& [text, exact, exact_width, fast_width] : cases) {
    for (const auto& [math, most] : {std::pair{ScoreMath::kExact, exact_width}, {ScoreMath::kFast, fast_width}}) {
      const Bounds bounds = bounds_of(text, 1.25, math);
      EXPECT_TRUE(bounds.is_decided && bounds.contains(exact)) << text;
      EXPECT_LE(bounds.high - bounds.low, most * 1.1) << text;
      EXPECT_GE(bounds.high - bounds.low, most / 8) << text;
    }
  }
}

}  // namespace
}  // namespace attend::test
