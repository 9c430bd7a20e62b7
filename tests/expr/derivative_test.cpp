// Compares the derivatives of functions with those of dual numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "expr/derivative.hpp"
#include "expr/dual_numbers.hpp"
#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Id;
using expr::Type;

bool agree(double a, double b) {
  return std::abs(a - b) <= 1e-8 * std::max({1.0, std::abs(a), std::abs(b)});
}

// Only finite values are compared.
TEST(Derivatives, AreThoseOfDualNumbers) {
  std::mt19937_64 generator(3);
  int compared = 0, not_zero = 0, by_captures = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const std::string text = RandomText(seed, /*is_mask=*/false).of_float(2 + static_cast<int>(seed % 4));
    Function f = expr::parse("score", text, some_captures(), Type::kFloat);
    const Function plain = f;
    const expr::Derivatives derivatives = expr::differentiate(f.graph, f.result);
    std::vector<Id> sought = {derivatives.by_score}, by = {f.graph.variable(expr::Variable::kScore)};
    for (const auto& [load, derivative] : derivatives.by_loads) sought.push_back(derivative), by.push_back(load);
    expr::Evaluator evaluator(f.graph, sought, element_of_capture);
    for (int n = 0; n < 8; ++n) {
      const expr::Point point = random_point(generator);
      const auto got = evaluator.at(point);
      for (std::size_t d = 0; d < sought.size(); ++d) {
        const DualNumber want = dual_of(plain.graph, plain.result, point, by[d], element_of_capture);
        if (!std::isfinite(want.slope) || !std::isfinite(want.value)) continue;
        ++compared, not_zero += want.slope != 0, by_captures += d > 0;
        ASSERT_TRUE(agree(got[d], want.slope)) << text << "\nby " << by[d] << ": " << got[d] << ", " << want.slope;
      }
    }
  }
  std::printf("%d derivatives, %d of them not 0, %d by captures\n", compared, not_zero, by_captures);
  EXPECT_GT(compared, 15000);
  EXPECT_GT(not_zero, 5000);
  EXPECT_GT(by_captures, 5000);
}

double derivative_at(const std::string& text, double score) {
  Function f = expr::parse("score", text, some_captures(), Type::kFloat);
  const expr::Derivatives derivatives = expr::differentiate(f.graph, f.result);
  expr::Evaluator evaluator(f.graph, {derivatives.by_score}, element_of_capture);
  return evaluator.at({score, 0, 0, 0, 0, 1, 1})[0];
}

TEST(Derivatives, AreDefinedAtCorners) {
  EXPECT_EQ(derivative_at("abs(score)", 0), 0);
  EXPECT_EQ(derivative_at("relu(score)", 0), 0.5);
  EXPECT_EQ(derivative_at("max(score, 2 * score)", 0), 1.5);
  EXPECT_EQ(derivative_at("floor(score) + round(score) + sign(score)", 1), 0);
  EXPECT_EQ(derivative_at("pow(score, 0)", 0), 0);
  EXPECT_EQ(derivative_at("pow(score, 1)", 0), 1);
  EXPECT_EQ(derivative_at("pow(score, 2)", -3), -6);
  EXPECT_EQ(derivative_at("clamp(score, -1, 1)", 3), 0);
  EXPECT_EQ(derivative_at("score < 0 ? 3 * score : score * score", -1), 3);
  EXPECT_EQ(derivative_at("7", 2), 0);
}

// A branch that is not chosen must not affect the derivative. PyTorch returns NaN for these derivatives.
TEST(Derivatives, KnowNothingOfWhatIsNotChosen) {
  EXPECT_EQ(derivative_at("score > 0 ? log(score) : 0", 0), 0);
  EXPECT_EQ(derivative_at("score > 1 ? 3 * sqrt(score - 1) / score : 2 * score", 1), 2);
  EXPECT_EQ(derivative_at("score > 0 ? (score > 1 ? log(score - 1) : 4 * score) : 1 / score", 1), 4);
  for (const char* text : {"score > 0 ? log(score) * log(score) : 0", "score > 0 ? sqrt(score) + 1 / sqrt(score) : 0",
                           "score > 0 ? silu(1 / score) : 0", "score > 0 ? max(log(score), -5) : 0",
                           "let y = log(score); (score > 0 ? y : 0) + (score > 1 ? y : 0)", "min(1 / score, 10)",
                           "score > 0 ? (q < 1 ? log(score) : 3) : (q < 1 ? 2 : log(score))"}) {
    EXPECT_EQ(derivative_at(text, 0), 0) << text;
  }
  EXPECT_EQ(derivative_at("clamp(exp(score), 0, 10)", 1000), 0);
  EXPECT_EQ(derivative_at("score > 0 ? 0 : pow(0 * score, 2 + score)", 0), 0);
  EXPECT_EQ(derivative_at("where(score < 1e30, score, exp(score * score))", 5), 1);
}

TEST(Derivatives, TakeAFewNodesForEach) {
  std::string text = "let x0 = score; ";
  for (int n = 1; n <= 150; ++n) {
    text += "let x" + std::to_string(n) + " = q > " + std::to_string(n) + " ? 1.5 * sin(x" + std::to_string(n - 1) +
            ") : pow(cap, 2.25); ";
  }
  Function f = expr::parse("score", text + "x150", some_captures(), Type::kFloat);
  const std::size_t before = f.graph.size();
  EXPECT_GT(expr::differentiate(f.graph, f.result).by_score, 0);
  EXPECT_LT(f.graph.size(), 4 * before);
}

TEST(Slopes, AreToldApart) {
  const auto slope = [](const std::string& text) {
    Function f = expr::parse("score", text, some_captures(), Type::kFloat);
    return expr::slope_of(f.graph, expr::differentiate(f.graph, f.result).by_score);
  };
  EXPECT_EQ(slope("score"), expr::Slope::kOne);
  EXPECT_EQ(slope("score - bias[h] * abs(q - k)"), expr::Slope::kOne);
  EXPECT_EQ(slope("score + table[h][clamp(q - k, 0, 15)]"), expr::Slope::kOne);
  EXPECT_EQ(slope("score * bias[h] + q"), expr::Slope::kUniform);
  EXPECT_EQ(slope("score * 0.5"), expr::Slope::kUniform);
  EXPECT_EQ(slope("7"), expr::Slope::kUniform);
  EXPECT_EQ(slope("cap * tanh(score / cap)"), expr::Slope::kAny);
  EXPECT_EQ(slope("score * bias[q]"), expr::Slope::kAny);
  EXPECT_EQ(slope("q >= k ? score : 0"), expr::Slope::kAny);
}

}  // namespace
}  // namespace attend::test
