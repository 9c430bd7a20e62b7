// Compiles the printed code of mask bounds for the host. The code must never report "all pairs visible" or "no pair
// visible" wrongly.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "expr/bounds.hpp"
#include "expr/parse.hpp"
#include "expr/print_bounds.hpp"
#include "expr/random_text.hpp"
#include "support/host_compiler.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Id;
using expr::Interval;
using expr::Type;

/// Signature of load_bounds(), which the compiled code calls. load_bounds() writes the smallest and the largest element
/// of a capture to bounds[0] and bounds[1]. `ends` holds the range of each subscript.
using Load = void (*)(int capture, const int* ends, int count, double* bounds);

void load_bounds(int capture, const int* ends, int count, double* bounds) {
  const auto rank = static_cast<std::size_t>(count);
  const std::vector<std::int64_t> shape = some_captures()[static_cast<std::size_t>(capture)].shape;
  std::array<std::int64_t, expr::kMostSubscripts> at = {};
  double low = INFINITY, high = -INFINITY;
  const auto visit = [&](auto&& self, std::size_t n) -> void {
    if (n == rank) {
      const double x = element_of_capture(capture, {at.data(), n});
      low = std::min(low, x), high = std::max(high, x);
      return;
    }
    const auto within = [&](int x) { return std::clamp<std::int64_t>(x, 0, shape[n] - 1); };
    for (at[n] = within(ends[2 * n]); at[n] <= within(ends[2 * n + 1]); ++at[n]) self(self, n + 1);
  };
  visit(visit, 0);
  bounds[0] = low, bounds[1] = high;
}

/// A condition to test. `root` is the result of the function, or a condition that the text contains.
struct Condition {
  std::string text;
  Function function;
  Id root;
};

/// Adds the conditions of a text in which every operation is exact.
void add_conditions(const std::string& text, std::vector<Condition>& all) {
  const Function f = expr::parse("mask", text, some_captures(), Type::kBool);
  for (Id id = 0; id <= f.result; ++id) {
    if (f.graph.type(id) != Type::kBool || f.graph.is_constant(id) || expr::inexact_operation(f.graph, id)) continue;
    all.push_back({text, f, id});
  }
}

std::string program_of(const std::vector<Condition>& conditions) {
  std::string text =
      "#include \"kernels/masks/mask_bounds.cuh\"\n"
      "using namespace attend::mask_bounds;\n"
      "using Load = void (*)(int, const int*, int, double*);\n"
      "struct Captures {\n  Load load;\n"
      "  template <int n> Floats floats(auto... at) const {\n"
      "    const Ints subscripts[] = {at..., {0, 0}};\n    double ends[2];\n"
      "    load(n, &subscripts[0].low, sizeof...(at), ends);\n    return {ends[0], ends[1], false};\n  }\n"
      "  template <int n> Ints ints(auto... at) const {\n"
      "    const Floats all = floats<n>(at...);\n    return {int(all.low), int(all.high)};\n  }\n"
      "  template <int n> Bools bools(auto... at) const {\n"
      "    const Floats all = floats<n>(at...);\n    return {all.low > 0, all.high > 0};\n  }\n};\n";
  std::string calls;
  for (std::size_t n = 0; n < conditions.size(); ++n) {
    const Condition& c = conditions[n];
    text += expr::print_bounds_struct(c.function.graph, fmt::format("F{}", n), c.root);
    calls += fmt::format("    case {0}: F{0}::evaluate(at, captures, result); break;\n", n);
  }
  return text +
         "extern \"C\" __attribute__((visibility(\"default\"))) int bounds_of(int condition, const int* x, Load load) "
         "{\n"
         "  const attend::BoundsPoint at = {{x[0], x[1]}, {x[2], x[3]}, {x[4], x[5]}, {x[6], x[7]}, {x[8], x[9]}, "
         "{x[10], x[11]}};\n  const Captures captures = {load};\n  Bools result = {};\n  switch (condition) {\n" +
         calls + "  }\n  return (result.low ? 2 : 0) + (result.high ? 1 : 0);\n}\n";
}

/// Returns the result of a condition with each float operation rounded to float32, as in kernels.
double in_float32(const Condition& c, const std::array<int, 6>& point) {
  std::vector<double> values;
  for (Id id = 0; id <= c.root; ++id) {
    const expr::Node& node = c.function.graph[id];
    const auto arg = [&](std::size_t n) {
      return node.args[n] == expr::kNone ? 0.0 : values[static_cast<std::size_t>(node.args[n])];
    };
    double value = node.value;
    if (node.op == expr::Op::kVariable) value = node.which == 0 ? 0 : point[static_cast<std::size_t>(node.which - 1)];
    if (node.op == expr::Op::kLoad) {
      std::array<std::int64_t, expr::kMostSubscripts> at = {};
      const auto& shape = c.function.graph.captures()[static_cast<std::size_t>(node.which)].shape;
      for (std::size_t n = 0; n < shape.size(); ++n) {
        at[n] = std::clamp<std::int64_t>(static_cast<std::int64_t>(arg(n)), 0, shape[n] - 1);
      }
      value = element_of_capture(node.which, {at.data(), shape.size()});
    } else if (node.num_args() > 0) {
      value = expr::apply(node.op, c.function.graph.operand_type(node), arg(0), arg(1), arg(2));
    }
    values.push_back(node.type == Type::kFloat ? static_cast<float>(value) : value);
  }
  return values.back();
}

/// Returns a random range for each variable. If `is_box` is set, the ranges are like those of a mask tile. Otherwise
/// they are arbitrary integers.
std::array<int, 12> draw_ranges(std::mt19937_64& generator, bool is_box) {
  const auto draw = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  if (is_box) {
    const int q = draw(32), k = draw(32), width = draw(8);
    return {1, 1, 2, 3, q, q + width, k, k + width, 40, 40, 40, 40};
  }
  std::array<int, 12> ends = {};
  for (std::size_t n = 0; n < ends.size(); n += 2) {
    const auto end = [&] {
      const auto drawn = static_cast<std::int32_t>(static_cast<std::uint32_t>(generator()));
      return draw(8) == 0 ? (drawn < 0 ? INT32_MIN : INT32_MAX) : drawn >> draw(32);
    };
    const int a = end(), b = draw(3) == 0 ? a : end();
    ends[n] = std::min(a, b), ends[n + 1] = std::max(a, b);
  }
  return ends;
}

TEST(PrintedBounds, HoldEveryValue) {
  std::vector<Condition> conditions;
  for (std::uint64_t seed = 0; conditions.size() < 600; ++seed) {
    add_conditions(RandomText(seed + 500, true).of_bool(1 + static_cast<int>(seed % 4)), conditions);
  }
  for (const char* text :
       {"k <= q", "q // 8 >= k // 8", "q % 32 // 8 == k % 32 // 8", "(q ^ k) < (q | k)", "sign(q - k) * k < 3",
        "float(q) >= float(k)", "sqrt(float(q - k)) < 3", "(k << 3) > (q >> 2)", "~q < -k",
        "float(q) // 3.0 < float(k) % 7.0", "round(float(q) / 3) == floor(float(k) * 0.3)"}) {
    add_conditions(text, conditions);
  }
  const TemporaryFolder folder;
  void* library = nullptr;
  try {
    library = compiled(folder, program_of(conditions), {ATTEND_TEST_SOURCE_ROOT});
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("mask_bounds") != std::string::npos) throw;
    GTEST_SKIP() << "no C++20 compiler ($CXX, else c++): " << error.what();
  }
  const auto bounds_of = reinterpret_cast<int (*)(int, const int*, Load)>(dlsym(library, "bounds_of"));
  ASSERT_NE(bounds_of, nullptr);
  std::mt19937_64 generator(3);
  int decided = 0, all = 0;
  for (std::size_t n = 0; n < conditions.size(); ++n) {
    for (int box = 0; box < 12; ++box) {
      const std::array<int, 12> ends = draw_ranges(generator, box % 3 != 2);
      const int found = bounds_of(static_cast<int>(n), ends.data(), load_bounds);
      const bool may_be_false = (found & 2) == 0, may_be_true = (found & 1) != 0;
      ASSERT_TRUE(may_be_false || may_be_true) << conditions[n].text;
      ++all;
      if (may_be_false && may_be_true) continue;
      ++decided;
      for (int point = 0; point < 30; ++point) {
        std::array<int, 6> at = {};
        for (std::size_t v = 0; v < at.size(); ++v) {
          const auto width = static_cast<std::uint64_t>(std::int64_t{ends[2 * v + 1]} - ends[2 * v]);
          const std::uint64_t step = point < 8 ? (generator() % 2) * width : generator() % (width + 1);
          at[v] = static_cast<int>(ends[2 * v] + static_cast<std::int64_t>(step));
        }
        const bool value = in_float32(conditions[n], at) != 0;
        ASSERT_TRUE(value ? may_be_true : may_be_false)
            << conditions[n].text << "\nnode " << conditions[n].root << " at q " << at[2] << " k " << at[3];
      }
    }
  }
  std::printf("%zu conditions; %d of %d decided\n", conditions.size(), decided, all);
  EXPECT_GT(decided, all / 5);
}

}  // namespace
}  // namespace attend::test
