// Tests functions evaluated on rows of float32, as in the `cpu` backend. Compares them with the operations of the graph
// in float64, each rounded to float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/score_function.hpp"
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

/// Returns whether the operation must be rounded correctly. The other operations are approximations.
bool is_exact(Op op) {
  switch (op) {
    case Op::kExp:
    case Op::kExp2:
    case Op::kLog:
    case Op::kLog2:
    case Op::kLog1p:
    case Op::kRsqrt:
    case Op::kSin:
    case Op::kCos:
    case Op::kTan:
    case Op::kTanh:
    case Op::kSigmoid:
    case Op::kErf:
    case Op::kPow:
      return false;
    default:
      return true;
  }
}

bool is_exact(const Graph& graph, Id root) {
  const std::vector<bool> needed = graph.needed_by(root);
  for (std::size_t n = 0; n < needed.size(); ++n) {
    if (needed[n] && !is_exact(graph[static_cast<Id>(n)].op)) return false;
  }
  return true;
}

/// Returns the values of all nodes. Floats are rounded to float32 after each operation.
std::vector<double> rounded_values(const Graph& graph, Id root, const expr::Point& point) {
  const std::vector<bool> needed = graph.needed_by(root);
  std::vector<double> values(graph.size());
  for (std::size_t n = 0; n < needed.size(); ++n) {
    if (!needed[n]) continue;
    const Node& node = graph[static_cast<Id>(n)];
    const auto arg = [&](std::size_t a) {
      return node.args[a] == expr::kNone ? 0.0 : values[static_cast<std::size_t>(node.args[a])];
    };
    double& value = values[n];
    if (node.op == Op::kConstant) {
      value = node.value;
    } else if (node.op == Op::kVariable) {
      value = point[static_cast<std::size_t>(node.which)];
    } else if (node.op == Op::kLoad) {
      const std::vector<std::int64_t>& shape = graph.captures()[static_cast<std::size_t>(node.which)].shape;
      std::vector<std::int64_t> at;
      for (std::size_t d = 0; d < shape.size(); ++d)
        at.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(arg(d)), 0, shape[d] - 1));
      value = element_of_capture(node.which, at);
    } else if (node.op == Op::kFloorDivide && node.type == Type::kFloat) {
      value = std::floor(static_cast<float>(arg(0) / arg(1)));
    } else {
      value = expr::apply(node.op, graph.operand_type(node), arg(0), arg(1), arg(2));
    }
    if (node.type == Type::kFloat) value = static_cast<float>(value);
  }
  return values;
}

/// The elements of all captures in memory. The captures' strides differ from those of dense tensors.
class Captured {
 public:
  Captured() {
    const std::vector<expr::Capture> captures = some_captures();
    floats_.resize(captures.size());
    ints_.resize(captures.size());
    bytes_.resize(captures.size());
    for (std::size_t c = 0; c < captures.size(); ++c) add(captures[c], c);
  }
  [[nodiscard]] const std::vector<cpu::CapturedView>& views() const { return views_; }

 private:
  void add(const expr::Capture& capture, std::size_t c) {
    cpu::CapturedView view;
    view.rank = static_cast<std::int32_t>(capture.shape.size());
    std::int64_t count = 3;  // elements between neighbours
    for (std::size_t d = capture.shape.size(); d-- > 0;) {
      view.extent[d] = capture.shape[d];
      view.stride[d] = count;
      count = count * capture.shape[d] + 5;
    }
    floats_[c].assign(static_cast<std::size_t>(count), std::nanf(""));
    ints_[c].assign(static_cast<std::size_t>(count), 999);
    bytes_[c].assign(static_cast<std::size_t>(count), 77);
    std::vector<std::int64_t> at(capture.shape.size(), 0);
    while (true) {
      std::int64_t place = 0;
      for (std::size_t d = 0; d < at.size(); ++d) place += at[d] * view.stride[d];
      const double x = element_of_capture(static_cast<std::int32_t>(c), at);
      floats_[c][static_cast<std::size_t>(place)] = static_cast<float>(x);
      ints_[c][static_cast<std::size_t>(place)] = static_cast<std::int64_t>(x);
      bytes_[c][static_cast<std::size_t>(place)] = static_cast<unsigned char>(x);
      std::size_t d = at.size();
      while (d > 0 && ++at[d - 1] == capture.shape[d - 1]) at[--d] = 0;
      if (d == 0) break;
    }
    view.type = capture.type == Type::kFloat ? cpu::CapturedType::kF32
                : capture.type == Type::kInt ? cpu::CapturedType::kI64
                                             : cpu::CapturedType::kU8;
    view.data = capture.type == Type::kFloat ? static_cast<const void*>(floats_[c].data())
                : capture.type == Type::kInt ? static_cast<const void*>(ints_[c].data())
                                             : static_cast<const void*>(bytes_[c].data());
    views_.push_back(view);
  }

  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<std::int64_t>> ints_;
  std::vector<std::vector<unsigned char>> bytes_;
  std::vector<cpu::CapturedView> views_;
};

bool is_same(float a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(static_cast<float>(b));
}

/// Evaluates the results at rows of keys. Expects the exact bits wherever all operations are exact. Returns the number
/// of values compared.
int check_rows(const Function& f, const std::vector<Id>& results, const std::string& text, const Captured& captured) {
  const expr::RowProgram program = expr::RowProgram::of(f.graph, results);
  constexpr int kMost = 37;
  cpu::RowFunction run(program, captured.views(), kMost);
  std::mt19937_64 generator(9);
  int compared = 0;
  for (int round = 0; round < 4; ++round) {
    const expr::Point drawn = random_point(generator);
    const int count = round == 0 ? 1 : round == 1 ? kMost : 1 + static_cast<int>(generator() % kMost);
    const cpu::FunctionRow row = {
        static_cast<int>(drawn[1]),       static_cast<int>(drawn[2]), static_cast<int>(drawn[3]), 40, 40,
        static_cast<int>(generator() % 8)};
    std::vector<float> scores;
    for (int n = 0; n < count; ++n) scores.push_back(static_cast<float>(random_point(generator)[0]));
    run.run(row, scores.data(), count);
    for (int n = 0; n < count; ++n) {
      const expr::Point point = {scores[static_cast<std::size_t>(n)],    drawn[1], drawn[2], drawn[3],
                                 static_cast<double>(row.first_key + n), 40,       40};
      for (std::size_t r = 0; r < results.size(); ++r) {
        const double wanted = rounded_values(f.graph, results[r], point)[static_cast<std::size_t>(results[r])];
        ++compared;
        if (f.graph.type(results[r]) == Type::kFloat) {
          EXPECT_TRUE(is_same(run.floats(r)[n], wanted))
              << text << "\nresult " << r << " of key " << n << ": " << run.floats(r)[n] << ", wanted " << wanted;
        } else {
          EXPECT_EQ(run.ints(r)[n], wanted) << text << "\nresult " << r << " of key " << n;
        }
      }
    }
  }
  return compared;
}

TEST(RowFunction, OfRandomTextsRoundsEveryOperation) {
  const Captured captured;
  int exact = 0;
  for (int n = 0; n < 1500; ++n) {
    RandomText random(static_cast<std::uint64_t>(n) + 4000, n % 3 == 2);
    const Type type = n % 3 == 2 ? Type::kBool : Type::kFloat;
    const std::string text = type == Type::kBool ? random.of_bool(3) : random.of_float(3);
    Function f = expr::parse("text", text, some_captures(), type);
    std::vector<Id> results = {f.result};
    if (type == Type::kFloat) results.push_back(expr::differentiate(f.graph, f.result).by_score);
    std::erase_if(results, [&](Id id) { return !is_exact(f.graph, id); });
    if (results.empty()) continue;
    exact += check_rows(f, results, text, captured) > 0 ? 1 : 0;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(exact, 500);
}

/// Tests every exact operation with NaN, infinities, zeros and the smallest and largest integers among the keys.
TEST(RowFunction, CornersAreTheGraphs) {
  const Captured captured;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {0.0F,          -0.0F,          0.5F,      -2.5F,      1e-40F,        3e9F, -3e9F,
                                     2147483648.0F, -2147483648.0F, kInfinity, -kInfinity, std::nanf(""), 7.0F};
  for (const char* text :
       {"score != score ? -1 : 1", "score ? -1.0 : 1.0", "score == score && score < 1 ? 2.0 : 3.0", "float(int(score))",
        "min(score, 0.5) - max(score, -inf)", "sign(score) + abs(score)", "score // 0.0 + score % 3.5",
        "round(score) + floor(score) - ceil(score) + trunc(score)", "float((q + k * 2147483647) // (k - 3))",
        "float((q - k * 2147483647) % (k - 3))", "float(k << (q + 30)) + float(-k >> 1)", "float(abs(k * 1073741824))",
        "float(~k ^ 3 & k | q)", "score * 1e300 + score * 1e-300"}) {
    const Function f = expr::parse("text", text, some_captures(), Type::kFloat);
    const expr::RowProgram program = expr::RowProgram::of(f.graph, std::vector<Id>{f.result});
    cpu::RowFunction run(program, captured.views(), 16);
    for (const int first_key : {0, 2147483640 - 16}) {
      run.run({1, 2, 5, 40, 40, first_key}, scores.data(), static_cast<int>(scores.size()));
      for (std::size_t n = 0; n < scores.size(); ++n) {
        const expr::Point point = {scores[n], 1, 2, 5, static_cast<double>(first_key) + static_cast<double>(n), 40, 40};
        const double wanted = rounded_values(f.graph, f.result, point)[static_cast<std::size_t>(f.result)];
        EXPECT_TRUE(is_same(run.floats(0)[n], wanted))
            << text << " of " << scores[n] << ": " << run.floats(0)[n] << ", wanted " << wanted;
      }
    }
  }
}

/// The value at a key must not depend on the other keys or on earlier contents of the buffers.
TEST(RowFunction, AValueDependsOnItsOwnKeyAlone) {
  const Function f = expr::parse(
      "text",
      "exp(score) + log(abs(score)) + sin(score) + cos(score) + tanh(score) + sigmoid(score) + log1p(abs(score))", {},
      Type::kFloat);
  const expr::RowProgram program = expr::RowProgram::of(f.graph, std::vector<Id>{f.result});
  constexpr int kMost = 48;
  std::mt19937 generator(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> scores;
    for (int n = 0; n < kMost; ++n)
      scores.push_back(static_cast<float>(static_cast<int>(generator() % 20001) - 10000) / 1000.0F);
    cpu::RowFunction fresh(program, {}, kMost), used(program, {}, kMost);
    fresh.run({}, scores.data(), kMost);
    std::vector<float> others = scores;
    for (int n = 0; n < kMost; ++n) {
      if (n % 3 != 0)
        others[static_cast<std::size_t>(n)] = n % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
    }
    used.run({}, others.data(), kMost);
    for (int n = 0; n < kMost; n += 3)
      EXPECT_TRUE(is_same(used.floats(0)[n], fresh.floats(0)[n])) << scores[static_cast<std::size_t>(n)];
    const int count = 1 + static_cast<int>(generator() % kMost);
    used.run({}, scores.data(), count);
    for (int n = 0; n < count; ++n)
      EXPECT_TRUE(is_same(used.floats(0)[n], fresh.floats(0)[n])) << scores[static_cast<std::size_t>(n)];
  }
}

/// Reads captures of every tensor dtype. Integers wrap around. Floats that become integers are clamped to the integer
/// range.
TEST(RowFunction, CapturesAreReadAsTheirTypes) {
  const std::vector<std::int64_t> wide = {
      0, -1, INT64_MAX, INT64_MIN, (std::int64_t{1} << 53) + 1, std::int64_t{1} << 32, 7, 8};
  const std::vector<double> doubles = {0, -1.5, 3e9, -3e9, std::nan(""), 1e300, 0.25, 8};
  const std::vector<std::uint16_t> bf16 = {0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x0000, 0x4049, 0x4100};
  const std::vector<std::int32_t> wrapped = {0, -1, -1, 0, 1, 0, 7, 8},
                                  clamped = {0, -1, INT32_MAX, INT32_MIN, 0, INT32_MAX, 0, 8};
  const auto ints_of = [](const void* data, cpu::CapturedType type) {
    const Function f = expr::parse("text", "float(c[k])", {{"c", Type::kInt, {8}}}, Type::kFloat);
    const expr::RowProgram program = expr::RowProgram::of(f.graph, std::vector<Id>{f.graph[f.result].args[0]});
    const std::vector<cpu::CapturedView> views = {{data, type, 1, {8}, {1}}};
    cpu::RowFunction run(program, views, 8);
    run.run({}, nullptr, 8);
    return std::vector<std::int32_t>(run.ints(0), run.ints(0) + 8);
  };
  EXPECT_EQ(ints_of(wide.data(), cpu::CapturedType::kI64), wrapped);
  EXPECT_EQ(ints_of(doubles.data(), cpu::CapturedType::kF64), clamped);
  EXPECT_EQ(ints_of(bf16.data(), cpu::CapturedType::kBF16),
            (std::vector<std::int32_t>{1, -1, INT32_MAX, INT32_MIN, 0, 0, 3, 8}));
  const Function f = expr::parse("text", "score + c[k]", {{"c", Type::kFloat, {8}}}, Type::kFloat);
  const expr::RowProgram program = expr::RowProgram::of(f.graph, std::vector<Id>{f.result});
  EXPECT_THROW(cpu::RowFunction(program, {}, 8), std::logic_error);
  const std::vector<cpu::CapturedView> flat = {{bf16.data(), cpu::CapturedType::kBF16, 0, {}, {}}};
  EXPECT_THROW(cpu::RowFunction(program, flat, 8), std::logic_error);
}

/// Tests each approximated function over the entire float32 range.
TEST(RowFunction, FunctionsStayWithinFourUnits) {
  std::vector<float> inputs = {0.0F,
                               -0.0F,
                               1.0F,
                               -1.0F,
                               1e-40F,
                               3.4e38F,
                               -3.4e38F,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::nanf("")};
  std::mt19937 generator(3);
  for (int n = 0; n < 20000; ++n) inputs.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
  for (int n = 0; n < 20000; ++n)
    inputs.push_back(static_cast<float>(static_cast<int>(generator() % 2000001) - 1000000) / 10000.0F);
  for (const char* text :
       {"exp(score)", "exp2(score)", "log(score)", "log2(score)", "log1p(score)", "rsqrt(score)", "sin(score)",
        "cos(score)", "tan(score)", "tanh(score)", "sigmoid(score)", "erf(score)", "pow(score, 2.5)"}) {
    const Function f = expr::parse("text", text, {}, Type::kFloat);
    const expr::RowProgram program = expr::RowProgram::of(f.graph, std::vector<Id>{f.result});
    cpu::RowFunction run(program, {}, static_cast<int>(inputs.size()));
    run.run({}, inputs.data(), static_cast<int>(inputs.size()));
    double largest = 0;
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      const double wanted = rounded_values(f.graph, f.result, {inputs[n]})[static_cast<std::size_t>(f.result)];
      const float found = run.floats(0)[n];
      // Results below the smallest normal number may be 0.
      constexpr double kSmallest = std::numeric_limits<float>::min();
      if (is_same(found, wanted) || (std::abs(wanted) < kSmallest && std::abs(found) <= kSmallest)) continue;
      const auto rounded = static_cast<float>(wanted);
      const double unit =
          std::max<double>(std::abs(std::nextafterf(rounded, INFINITY) - static_cast<double>(rounded)), 1e-45);
      const double units = std::abs(static_cast<double>(found) - rounded) / unit;
      EXPECT_LE(units, 4) << text << " of " << inputs[n] << ": " << found << ", wanted " << wanted;
      largest = std::max(largest, units);
      if (testing::Test::HasFailure()) return;
    }
    std::printf("%-16s at most %.1f units in the last place\n", text, largest);
  }
}

}  // namespace
}  // namespace attend::test
