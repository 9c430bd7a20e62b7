// Tests the parser of function texts. Compares the value of a text with the value that C++ gives the same text. Also
// tests the error messages for invalid texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attend/error.hpp"
#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Type;

double value_of(const std::string& text, const expr::Point& point, Type type = Type::kFloat) {
  const Function f = expr::parse("score", text, some_captures(), type);
  expr::Evaluator values(f.graph, {f.result}, element_of_capture);
  return values.at(point)[0];
}

#pragma GCC diagnostic ignored "-Wparentheses"  // tests C's precedence

constexpr expr::Point kPoint = {0.75, 2, 5, 23, 9, 40, 33};

/// Expects the value that this C++ compiler computes for the same text.
#define EXPECT_AS_IN_CPP(expression) \
  EXPECT_EQ(value_of(#expression, kPoint), static_cast<double>(expression)) << #expression

TEST(TextOfAFunction, IsReadAsCppReadsIt) {
  const double score = kPoint[0];
  const int b = 2, h = 5, q = 23, k = 9, q_len = 40, k_len = 33;
  EXPECT_AS_IN_CPP(score);
  EXPECT_AS_IN_CPP(score + q * k - h);
  EXPECT_AS_IN_CPP((score + q) * (k - h));
  EXPECT_AS_IN_CPP(q - k - h);
  EXPECT_AS_IN_CPP(q % k % h);
  EXPECT_AS_IN_CPP(-q + -(-k));
  EXPECT_AS_IN_CPP(q << 2 + 1);
  EXPECT_AS_IN_CPP(q >> 1 << 2);
  EXPECT_AS_IN_CPP(q & k | h ^ b);
  EXPECT_AS_IN_CPP((q & 6) == 6);
  EXPECT_AS_IN_CPP(q & 6 == 6);
  EXPECT_AS_IN_CPP(q | k ^ h);
  EXPECT_AS_IN_CPP(q ^ k & h);
  EXPECT_AS_IN_CPP(q | k & h);
  EXPECT_AS_IN_CPP((q & (k == 9)));
  EXPECT_AS_IN_CPP(~q & k);
  EXPECT_AS_IN_CPP(!q || k > 3 && h < 2);
  EXPECT_AS_IN_CPP((!q || k > 3) && h < 2);
  EXPECT_AS_IN_CPP(q > k ? score : -score);
  EXPECT_AS_IN_CPP(q < k ? 1 : h > 4 ? 2 : 3);
  EXPECT_AS_IN_CPP(q > k ? h > 6 ? 1 : 2 : 3);
  EXPECT_AS_IN_CPP((q > k) + (k > q) * 5);
  EXPECT_AS_IN_CPP(q >= 23 == k <= 9);
  EXPECT_AS_IN_CPP(q != 23 || k_len - q_len == -7);
  EXPECT_AS_IN_CPP(1.5e1 * .5 - 2.);
}

TEST(TextOfAFunction, HasItsOwnDivisionsAndFunctions) {
  const auto expect = [](const std::string& text, double value) { EXPECT_EQ(value_of(text, kPoint), value) << text; };
  expect("q / 2", 11.5);
  expect("q // 2", 11);
  expect("-q // 2", -12);
  expect("-q % 5", 2);
  expect("q % -5", -2);
  expect("q // (k - 9)", 0);
  expect("q % (k - 9)", 0);
  expect("7.5 // 2", 3);
  expect("-7.5 % 2", 0.5);
  expect("min(q, k, h)", 5);
  expect("max(q, 2.5)", 23);
  expect("clamp(q - k, -3, 3) + clamp(score, -0.5, 0.5)", 3.5);
  expect("where(q < k, 1, 0.25)", 0.25);
  expect("int(2.9) + int(-2.9) + int(inf) - 2147483647", 0);
  expect("2147483647 + q - q - 2147483647 + 1 - 1", 0);
  expect("(2147483647 + 1) // -1", -2147483648.0);
  expect("abs(-2147483647 - 1)", -2147483648.0);
  expect("(1 << 33) + (-8 >> 33) + (1 >> -1)", 2 - 4);
  expect("round(2.5) + round(3.5) + trunc(-1.5) + floor(-1.5) + ceil(-1.5)", 2 + 4 - 1 - 2 - 1);
  expect("relu(-score) + relu(score)", 0.75);
  expect("sign(k - q) * abs(k - q)", -14);
  expect("pow(score, 2)", 0.5625);
  expect("let d = q - k; let e = d * d; e + d", 14 * 14 + 14);
  expect("table[1][3]", element_of_capture(0, std::array<std::int64_t, 2>{1, 3}));
  expect("table[1, 3]", element_of_capture(0, std::array<std::int64_t, 2>{1, 3}));
  expect("table[99][-4]", element_of_capture(0, std::array<std::int64_t, 2>{3, 0}));
  expect("cap", element_of_capture(2, {}));
  expect("doc[doc[q]] + true", 1);
  EXPECT_TRUE(std::isnan(value_of("min(score, inf - inf)", kPoint)));
  EXPECT_NEAR(value_of("gelu(score)", kPoint), 0.75 * 0.5 * (1 + std::erf(0.75 / std::sqrt(2))), 1e-15);
}

TEST(TextOfAFunction, IsAMaskWhereItIsNotZero) {
  EXPECT_EQ(value_of("k <= q && doc[q] == doc[k]", kPoint, Type::kBool), 0);
  EXPECT_EQ(value_of("q - k", kPoint, Type::kBool), 1);
  EXPECT_EQ(value_of("0.0", kPoint, Type::kBool), 0);
}

std::string refusal_of(const std::string& text, Type type = Type::kFloat,
                       std::vector<expr::Capture> captures = some_captures()) {
  try {
    const Function f = expr::parse("score", text, std::move(captures), type);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    return error.what();
  }
  return "nothing refused";
}

TEST(TextOfAFunction, IsRefusedAtItsColumn) {
  const auto expect = [](const std::string& text, const std::string& message, Type type = Type::kFloat) {
    EXPECT_EQ(refusal_of(text, type), "score: column " + message) << text;
  };
  expect("", "1: the end, expected a number, a name or '('");
  expect("score +", "8: the end, expected a number, a name or '('");
  expect("score q", "7: 'q', expected an operator or the end");
  expect("(score", "7: the end, expected ')'");
  expect("score $ 2", "7: '$' is not a symbol of the language");
  expect("scor", "1: 'scor' is not a name here, known: b, h, k, k_len, q, q_len, score, bias, cap, doc, flags, table");
  expect("score", "1: 'score' is not defined in a mask", Type::kBool);
  expect("q < k < 5", "7: a comparison of a comparison: write a < b && b < c");
  expect("score & 1", "7: '&' of a float, allowed: integers, bools");
  expect("q << score", "3: '<<' of a float, allowed: integers, bools");
  expect("~score", "1: '~' of a float, allowed: an integer");
  expect("bias[score]", "5: a subscript that is a float: write int(...)");
  expect("bias", "1: 'bias' with 0 subscripts, allowed: 1");
  expect("2 + table[q]", "5: 'table' with 1 subscripts, allowed: 2");
  expect("bias[1, 2]", "1: 'bias' with 2 subscripts, allowed: 1");
  expect("cap[0]", "1: 'cap' with 1 subscripts, allowed: 0");
  expect("bias[1", "7: the end, expected ']'");
  expect("exp()", "1: 'exp' with 0 arguments, allowed: 1");
  expect("min(1)", "1: 'min' with fewer than 2 arguments");
  expect("q == k == h", "8: a comparison of a comparison: write a < b && b < c");
  expect("q . k", "3: '.' is not a number");
  expect("clamp(1, 2)", "1: 'clamp' with 2 arguments, allowed: 3");
  expect("exp", "4: the end, expected '('");
  expect("let q = 3; q", "5: 'q' is already in use");
  expect("let let = 3; q", "5: 'let' is already in use");
  expect("let 3 = 3; q", "5: expected a name after 'let'");
  expect("let d = 3, d", "10: ',', expected ';'");
  expect("q ? 1", "6: the end, expected ':'");
  expect("12q", "3: 'q' directly after a number");
  expect("1.2.3", "4: '.' directly after a number");
  expect("0x10", "2: 'x' directly after a number");
  expect("2147483648", "1: an integer above 2147483647; write a float, with a point");
  expect("1e999", "1: a number outside the range of float64");
  expect("#include <x>", "1: '#' is not a symbol of the language");
  expect("q = k", "3: '=', expected an operator or the end");
  expect(std::string("q \0 k", 5), "3: '?' is not a symbol of the language");
}

TEST(TextOfAFunction, IsRefusedWhereItIsTooMuch) {
  EXPECT_EQ(refusal_of(std::string(100000, '(')), "score: column 101: brackets and operators nested too deeply");
  EXPECT_EQ(refusal_of(std::string(100000, '-') + "q"), "score: column 200: brackets and operators nested too deeply");
  std::string sum = "score";
  for (int n = 0; n < 5000; ++n) sum += " + " + std::to_string(n) + ".5 * score";
  EXPECT_THAT(refusal_of(sum),
              testing::MatchesRegex("score: column [0-9]+: a function of more than 4096 operations, its derivatives "
                                    "included"));
  EXPECT_EQ(refusal_of(std::string(100000, 'x')).substr(0, 60),
            "score: column 1: 'xxxxxxxxxxxxxxxxxxxxxxxx...' is not a name");
}

TEST(CapturesOfAFunction, HaveNamesOfTheirOwn) {
  const auto refusal = [](const std::string& name, std::vector<std::int64_t> shape = {3}) {
    return refusal_of("score", Type::kFloat, {{name, Type::kFloat, std::move(shape)}});
  };
  EXPECT_EQ(refusal("x"), "nothing refused");
  for (const char* name : {"q", "score", "min", "exp", "let", "pi", "true"}) {
    EXPECT_EQ(refusal(name), std::string("score: capture '") + name + "': the name is already in use");
  }
  for (const char* name : {"", "1", "a b", "a;", "$", "1abc", " a"}) {
    EXPECT_EQ(refusal(name), std::string("score: capture '") + name + "': not a name");
  }
  EXPECT_EQ(refusal("x", {1, 2, 3, 4, 5}), "score: capture 'x': more than 4 extents");
  EXPECT_EQ(refusal("x", {2, 0}), "score: capture 'x': extent 0, allowed 1 to 2147483647");
  EXPECT_EQ(refusal_of("score", Type::kFloat, {{"x", Type::kInt, {}}, {"x", Type::kInt, {}}}),
            "score: capture 'x': the name is already in use");
}

TEST(RandomTexts, AreRead) {
  std::mt19937_64 generator(5);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    RandomText random(seed, seed % 2 == 1);
    const std::string text = seed % 2 == 1 ? random.of_bool(4) : random.of_float(4);
    const Type type = seed % 2 == 1 ? Type::kBool : Type::kFloat;
    const Function f = expr::parse("score", text, some_captures(), type);
    EXPECT_EQ(f.graph.type(f.result), type) << text;
  }
}

TEST(Graphs, HaveOneNodeForEqualOnes) {
  const Function f = expr::parse("score", "exp(score * 2) + exp(score * (1 + 1))", {}, Type::kFloat);
  int products = 0, exponentials = 0;
  for (expr::Id id = 0; id < static_cast<expr::Id>(f.graph.size()); ++id) {
    products += f.graph[id].op == expr::Op::kMultiply;
    exponentials += f.graph[id].op == expr::Op::kExp;
  }
  EXPECT_EQ(products, 1);
  EXPECT_EQ(exponentials, 1);
}

}  // namespace
}  // namespace attend::test
