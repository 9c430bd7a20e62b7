// Compares printed functions with the evaluator, bit for bit. The printed code is compiled for the host with Float =
// double.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "expr/derivative.hpp"
#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/print.hpp"
#include "expr/random_text.hpp"
#include "support/host_compiler.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Graph;
using expr::Id;
using expr::Type;

/// A function and the nodes that are printed as its results. The results are the value and, for a score function, all
/// derivatives.
struct Printed {
  std::string text;
  Function function;
  std::vector<Id> nodes;
};

Printed printed(const std::string& text, Type result) {
  Printed p = {text, expr::parse("text", text, some_captures(), result), {}};
  p.nodes.push_back(p.function.result);
  if (result != Type::kFloat) return p;
  const expr::Derivatives by = expr::differentiate(p.function.graph, p.function.result);
  p.nodes.push_back(by.by_score);
  for (const auto& [load, derivative] : by.by_loads) p.nodes.push_back(derivative);
  return p;
}

using Element = double (*)(int capture, const std::int64_t* subscripts, int count);

double element(int capture, const std::int64_t* subscripts, int count) {
  return element_of_capture(capture, {subscripts, static_cast<std::size_t>(count)});
}

/// Returns a C++ program with the printed functions. @param are_long whether indices may be 2^21 or more
std::string program_of(const std::vector<Printed>& functions, bool are_long) {
  std::string extents;
  for (const expr::Capture& capture : some_captures()) {
    std::string row;
    for (const std::int64_t extent : capture.shape) row += fmt::format("{}, ", extent);
    extents += fmt::format("{{{}0}}, ", row);
  }
  std::string text = fmt::format(
      "{1}#include \"kernels/attention/score_math.cuh\"\n"
      "using Element = double (*)(int, const std::int64_t*, int);\n"
      "constexpr int kExtents[][5] = {{{0}}};\n"
      "struct Captures {{\n  Element element;\n"
      "  template <int n, int load_of> double load(auto... at) const {{\n"
      "    const std::int64_t subscripts[] = {{at..., 0}};\n"
      "    return element(n, subscripts, sizeof...(at));\n  }}\n"
      "  template <int n, int d> int extent() const {{ return kExtents[n][d]; }}\n}};\n",
      extents, are_long ? "#define ATTEND_LONG_SEQUENCES\n" : "");
  std::string calls;
  for (std::size_t f = 0; f < functions.size(); ++f) {
    const Printed& p = functions[f];
    text += expr::print_struct(p.function.graph, fmt::format("F{}", f), p.nodes);
    std::string locals, arguments, stores;
    for (std::size_t n = 0; n < p.nodes.size(); ++n) {
      const Type type = p.function.graph.type(p.nodes[n]);
      locals += fmt::format("{} r{}; ", type == Type::kFloat ? "double" : type == Type::kInt ? "int" : "bool", n);
      arguments += fmt::format(", r{}", n);
      stores += fmt::format(" results[{0}] = r{0};", n);
    }
    calls += fmt::format("    case {0}: {{ {1}F{0}::evaluate(at, captures{2});{3} break; }}\n", f, locals, arguments,
                         stores);
  }
  return text +
         "extern \"C\" __attribute__((visibility(\"default\"))) void evaluate(int function, const double* x, Element "
         "element, "
         "double* results) {\n"
         "  const attend::ScorePoint<double> at = {x[0], int(x[1]), int(x[2]), int(x[3]), int(x[4]), int(x[5]), "
         "int(x[6]), double(int(x[3])), double(int(x[4])), double(int(x[3])) - 5.0 - double(int(x[4])), 5.0};\n"
         "  const Captures captures = {element};\n  switch (function) {\n" +
         calls + "  }\n}\n";
}

class PrintedCode : public testing::Test {
 protected:
  /// Compiles the functions and evaluates their nodes at the points. Expects the same bits as from the evaluator.
  static void check(const std::vector<Printed>& functions, const std::vector<expr::Point>& points, bool are_long) {
    const TemporaryFolder folder;
    void* library = nullptr;
    try {
      (void)compiled(TemporaryFolder(), "int x;", {});
    } catch (const std::exception& error) {
      GTEST_SKIP() << "no C++20 compiler ($CXX, else c++): " << error.what();
    }
    library = compiled(folder, program_of(functions, are_long), {ATTEND_TEST_SOURCE_ROOT});
    using Evaluate = void (*)(int, const double*, Element, double*);
    const auto evaluate = reinterpret_cast<Evaluate>(dlsym(library, "evaluate"));
    ASSERT_NE(evaluate, nullptr);
    for (std::size_t f = 0; f < functions.size(); ++f) {
      const Printed& p = functions[f];
      const auto load = [](std::int32_t capture, std::span<const std::int64_t> at) {
        return element_of_capture(capture, at);
      };
      expr::Evaluator evaluator(p.function.graph, p.nodes, load);
      std::vector<double> results(p.nodes.size());
      for (const expr::Point& point : points) {
        evaluate(static_cast<int>(f), point.data(), element, results.data());
        const std::span<const double> wanted = evaluator.at(point);
        for (std::size_t n = 0; n < results.size(); ++n) {
          EXPECT_TRUE(is_same(results[n], wanted[n]))
              << p.text << "\nnode " << n << " at score " << point[0] << " q " << point[3] << " k " << point[4] << ": "
              << results[n] << ", wanted " << wanted[n];
        }
      }
    }
  }

 private:
  static bool is_same(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }
};

TEST_F(PrintedCode, OfRandomTextsHasTheEvaluatorsBits) {
  constexpr int kFunctions = 60, kPoints = 40, kDepth = 3;
  std::vector<Printed> functions;
  for (int n = 0; n < kFunctions; ++n) {
    RandomText random(static_cast<std::uint64_t>(n) + 77, n % 3 == 2);
    functions.push_back(n % 3 == 2 ? printed(random.of_bool(kDepth), Type::kBool)
                                   : printed(random.of_float(kDepth), Type::kFloat));
  }
  std::mt19937_64 generator(5);
  std::vector<expr::Point> points;
  for (int n = 0; n < kPoints; ++n) points.push_back(random_point(generator));
  check(functions, points, /*are_long=*/false);
}

/// Tests operations at their limits: the smallest and largest integers, zeros, infinities, NaN, and subscripts outside
/// the tensor.
TEST_F(PrintedCode, OfCornersHasTheEvaluatorsBits) {
  std::vector<Printed> functions;
  for (const char* text :
       {"float(q // k) + q % k * 0.5", "float(-q) + abs(k) - sign(q)", "float(q << k) - float(q >> k)",
        "float(~q ^ k | q & 12345)", "float(q * k + q - k)", "float(min(q, k)) - max(q, k)", "score // 0.0",
        "score % 3.5 + score % -3.5", "float(int(score * 1e9))", "min(score, 0.5) - max(score, -inf)", "sign(score)",
        "table[q][k] + bias[k]", "sqrt(score) + log(score) + rsqrt(score)", "pow(score, 0.0) + pow(0.0, score)",
        "sigmoid(score * 1000)", "score == score ? round(score * 2.5) : -1", "inf - score", "exp(score * 1e6)"}) {
    functions.push_back(printed(text, Type::kFloat));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kLeast = std::numeric_limits<std::int32_t>::min(), kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<expr::Point> points;
  for (const double score : {0.0, -0.0, 0.5, 1.5, -2.5, 7.0, -7.0, 3e9, -3e9, kInfinity, -kInfinity, std::nan("")}) {
    for (const double q : {0.0, 1.0, -1.0, 7.0, -7.0, 33.0, kLeast, kMost}) {
      for (const double k : {0.0, 1.0, -1.0, 3.0, -3.0, 31.0, 32.0, kLeast, kMost})
        points.push_back({score, 1, 2, q, k, 40, 40});
    }
  }
  check(functions, points, /*are_long=*/true);
}

/// The printed code clamps a subscript unless the subscript is certainly within the tensor.
TEST(PrintedText, ClampsSubscriptsUnlessTheyAreCertainlyWithin) {
  const std::vector<expr::Capture> captures = {{"t", Type::kFloat, {8}}, {"f", Type::kFloat, {8}}};
  const auto clamps = [&](const char* text) {
    const Function f = expr::parse("text", text, captures, Type::kFloat);
    return expr::print_struct(f.graph, "F", std::array{f.result}).find("within") != std::string::npos;
  };
  EXPECT_FALSE(clamps("score + t[clamp(q - k, -4, 3) + 4]"));
  EXPECT_TRUE(clamps("score + t[clamp(q - k, -4, 4) + 4]"));
  // int() of NaN is 0. After the subtraction this subscript is outside the tensor.
  EXPECT_TRUE(clamps("score + t[int(clamp(score, 100001.5, 100005)) - 100000]"));
  EXPECT_TRUE(clamps("score + t[int(clamp(f[clamp(q, 0, 7)], 100001.5, 100005)) - 100000]"));
}

TEST(PrintedText, HasNoNamesOfTheUsers) {
  const auto text = [](const char* name) {
    const Function f =
        expr::parse("text", fmt::format("score + {}[q, k]", name), {{name, Type::kFloat, {4, 4}}}, Type::kFloat);
    return expr::print_struct(f.graph, "Score", std::array{f.result});
  };
  EXPECT_EQ(text("table"), text("asm"));
  EXPECT_EQ(text("asm").find("asm"), std::string::npos);
}

}  // namespace
}  // namespace attend::test
