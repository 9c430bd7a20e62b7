// Derivatives of functions against dual numbers: (x + x' e), with e e = 0, computed by rules of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>
#include <vector>

#include "expr/derivative.hpp"
#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Graph;
using expr::Id;
using expr::Node;
using expr::Op;
using expr::Type;

struct Dual {
  double value = 0;
  double slope = 0;
};

Dual of_float(Op op, const Dual& a, const Dual& b, double y) {
  const auto chain = [&](double slope) { return Dual{y, slope * a.slope}; };
  switch (op) {
    case Op::kNegate:
      return chain(-1);
    case Op::kAbs:
      return chain(a.value > 0 ? 1 : a.value < 0 ? -1 : 0);
    case Op::kExp:
      return chain(std::exp(a.value));
    case Op::kExp2:
      return chain(std::exp2(a.value) * std::numbers::ln2);
    case Op::kLog:
      return chain(1 / a.value);
    case Op::kLog2:
      return chain(std::numbers::log2e / a.value);
    case Op::kLog1p:
      return chain(1 / (1 + a.value));
    case Op::kSqrt:
      return chain(0.5 / std::sqrt(a.value));
    case Op::kRsqrt:
      return chain(-0.5 / (a.value * std::sqrt(a.value)));
    case Op::kSin:
      return chain(std::cos(a.value));
    case Op::kCos:
      return chain(-std::sin(a.value));
    case Op::kTan:
      return chain(1 / (std::cos(a.value) * std::cos(a.value)));
    case Op::kTanh:
      return chain(1 / (std::cosh(a.value) * std::cosh(a.value)));
    case Op::kSigmoid:
      return chain(1 / ((1 + std::exp(-a.value)) * (1 + std::exp(a.value))));
    case Op::kErf:
      return chain(2 / std::sqrt(std::numbers::pi) * std::exp(-a.value * a.value));
    case Op::kAdd:
      return {y, a.slope + b.slope};
    case Op::kSubtract:
      return {y, a.slope - b.slope};
    case Op::kMultiply:
      return {y, a.slope * b.value + a.value * b.slope};
    case Op::kDivide:
      return {y, (a.slope * b.value - a.value * b.slope) / (b.value * b.value)};
    case Op::kFloorMod:
      return {y, a.slope - std::floor(a.value / b.value) * b.slope};
    case Op::kMin:
      return {y, a.value == b.value ? (a.slope + b.slope) / 2 : (a.value < b.value ? a : b).slope};
    case Op::kMax:
      return {y, a.value == b.value ? (a.slope + b.slope) / 2 : (a.value > b.value ? a : b).slope};
    case Op::kPow: {
      const double by_base = b.value == 0 ? 0 : b.value * std::pow(a.value, b.value - 1) * a.slope;
      const double by_exponent = b.slope == 0 || (a.value == 0 && b.value >= 0) ? 0 : y * std::log(a.value) * b.slope;
      return {y, by_base + by_exponent};
    }
    default:
      return {y, 0};
  }
}

/// The result at a point and its derivative by `by`, a node.
Dual dual_of(const Function& f, const expr::Point& point, Id by) {
  std::vector<Id> all;
  for (Id id = 0; id <= f.result; ++id) all.push_back(id);
  expr::Evaluator evaluator(f.graph, all, element_of_capture);
  const auto values = evaluator.at(point);
  std::vector<Dual> duals(all.size());
  for (Id id = 0; id <= f.result; ++id) {
    const Node& node = f.graph[id];
    const auto arg = [&](std::size_t n) {
      return node.args[n] == expr::kNone ? Dual{} : duals[static_cast<std::size_t>(node.args[n])];
    };
    Dual& own = duals[static_cast<std::size_t>(id)];
    own = {values[static_cast<std::size_t>(id)], 0};
    if (id == by) {
      own.slope = 1;
    } else if (node.op == Op::kSelect) {
      own.slope = (arg(0).value != 0 ? arg(1) : arg(2)).slope;
    } else if (node.type == Type::kFloat && node.num_args() > 0 && node.op != Op::kToFloat && node.op != Op::kLoad) {
      own = of_float(node.op, arg(0), arg(1), own.value);
    }
  }
  return duals.back();
}

bool agree(double a, double b) {
  return std::abs(a - b) <= 1e-8 * std::max({1.0, std::abs(a), std::abs(b)});
}

// Where those are finite.
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
        const Dual want = dual_of(plain, point, by[d]);
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

// Where torch's are NaN.
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
