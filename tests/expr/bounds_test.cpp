// Tests the bounds of functions. The bounds must contain every value, and must be narrow enough to decide tiles of
// masks.
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
#include "expr/evaluate.hpp"
#include "expr/parse.hpp"
#include "expr/random_text.hpp"

namespace attend::test {
namespace {

using expr::Function;
using expr::Interval;
using expr::Type;

/// Returns the bounds of a capture's elements within the subscript ranges. Reads all of these elements.
Interval bounds_of_capture(std::int32_t capture, std::span<const Interval> subscripts) {
  std::array<std::int64_t, expr::kMostSubscripts> at = {};
  Interval all = {1e9, -1e9};
  const auto visit = [&](auto&& self, std::size_t n) -> void {
    if (n == subscripts.size()) {
      all = all.hull(Interval::of(element_of_capture(capture, {at.data(), n})));
      return;
    }
    for (double x = subscripts[n].low; x <= subscripts[n].high; ++x) {
      at[n] = static_cast<std::int64_t>(x);
      self(self, n + 1);
    }
  };
  visit(visit, 0);
  return all;
}

/// Returns the result of the function with each float operation rounded to float32, as in kernels.
double in_float32(const Function& f, const expr::Point& point) {
  std::vector<double> values;
  for (expr::Id id = 0; id <= f.result; ++id) {
    const expr::Node& node = f.graph[id];
    const auto arg = [&](std::size_t n) {
      return node.args[n] == expr::kNone ? 0.0 : values[static_cast<std::size_t>(node.args[n])];
    };
    double value = node.value;
    if (node.op == expr::Op::kVariable) value = point[static_cast<std::size_t>(node.which)];
    if (node.op == expr::Op::kLoad) {
      std::array<std::int64_t, expr::kMostSubscripts> at = {};
      const auto& shape = f.graph.captures()[static_cast<std::size_t>(node.which)].shape;
      for (std::size_t n = 0; n < shape.size(); ++n) {
        at[n] = std::clamp<std::int64_t>(static_cast<std::int64_t>(arg(n)), 0, shape[n] - 1);
      }
      value = element_of_capture(node.which, {at.data(), shape.size()});
    } else if (node.num_args() > 0) {
      value = expr::apply(node.op, f.graph.operand_type(node), arg(0), arg(1), arg(2));
    }
    values.push_back(node.type == Type::kFloat ? static_cast<float>(value) : value);
  }
  return values.back();
}

expr::Ranges ranges_of(double q_begin, double q_end, double k_begin, double k_end) {
  return {Interval{-4, 4},  Interval::of(1), Interval{2, 3}, Interval{q_begin, q_end - 1}, Interval{k_begin, k_end - 1},
          Interval::of(40), Interval::of(40)};
}

struct Counts {
  int values = 0;
  int decided = 0;
};

/// Compares the bounds over the given ranges with values at points inside the ranges. The corners are tested first.
void check_bounds(const std::string& text, bool is_mask, const expr::Ranges& ranges, std::mt19937_64& generator,
                  Counts& counts) {
  const Function f = expr::parse("score", text, some_captures(), is_mask ? Type::kBool : Type::kFloat);
  expr::Evaluator evaluator(f.graph, {f.result}, element_of_capture);
  const Interval bounds = expr::bounds_of(f.graph, f.result, ranges, bounds_of_capture);
  counts.decided += is_mask && bounds.is_one();
  for (int n = 0; n < 40; ++n) {
    expr::Point point = {};
    for (std::size_t v = 0; v < expr::kVariables; ++v) {
      const Interval& range = ranges[v];
      const double part = n < 8 ? static_cast<double>(generator() % 2) : static_cast<double>(generator() % 1001) / 1000;
      point[v] = range.low + part * (range.high - range.low);
      if (v > 0) point[v] = std::floor(point[v]);
    }
    for (const double value : {evaluator.at(point)[0], in_float32(f, point)}) {
      ++counts.values;
      ASSERT_TRUE(bounds.contains(value))
          << text << "\n"
          << value << " beside " << bounds.low << " to " << bounds.high << (bounds.has_nan ? " or NaN" : "");
    }
  }
}

TEST(Bounds, HoldEveryValue) {
  std::mt19937_64 generator(9);
  const auto draw = [&](int count) { return static_cast<double>(generator() % static_cast<unsigned>(count)); };
  Counts counts;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const bool is_mask = seed % 2 == 1;
    RandomText random(seed, is_mask);
    const int depth = 1 + static_cast<int>(seed % 4);
    const std::string text = is_mask ? random.of_bool(depth) : random.of_float(depth);
    for (int box = 0; box < 4; ++box) {
      const double q = draw(32), k = draw(32), width = 1 + draw(8);
      ASSERT_NO_FATAL_FAILURE(check_bounds(text, is_mask, ranges_of(q, q + width, k, k + width), generator, counts));
    }
  }
  std::printf("%d values; %d of 6000 masks decided\n", counts.values, counts.decided);
  EXPECT_GT(counts.decided, 1000);
}

// The variables have arbitrary integer ranges, up to the limits of the integer type, and arbitrary scores.
TEST(Bounds, HoldValuesOfAnyRange) {
  std::mt19937_64 generator(11);
  const auto range_of_ints = [&] {
    const auto end = [&] {
      const auto bits = static_cast<int>(generator() % 32);
      const auto drawn = static_cast<std::int32_t>(static_cast<std::uint32_t>(generator()));
      return generator() % 8 == 0 ? (drawn < 0 ? INT32_MIN : INT32_MAX) : drawn >> bits;
    };
    const double a = end(), b = generator() % 3 == 0 ? a : end();
    return Interval{std::min(a, b), std::max(a, b)};
  };
  Counts counts;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const bool is_mask = seed % 2 == 1;
    RandomText random(seed + 10000, is_mask);
    const int depth = 1 + static_cast<int>(seed % 4);
    const std::string text = is_mask ? random.of_bool(depth) : random.of_float(depth);
    expr::Ranges ranges;
    for (std::size_t v = 1; v < expr::kVariables; ++v) ranges[v] = range_of_ints();
    const double most = std::exp2(static_cast<double>(generator() % 250) - 125);
    ranges[0] = {generator() % 2 == 0 ? -most : 0, most};
    ASSERT_NO_FATAL_FAILURE(check_bounds(text, is_mask, ranges, generator, counts));
  }
  std::printf("%d values; %d of 3000 masks decided\n", counts.values, counts.decided);
}

/// Returns 0 if the bounds show that the mask hides the entire tile, 1 if the entire tile is visible, and 2 if the
/// bounds decide neither.
int tile_of(const std::string& mask, double q_begin, double q_end, double k_begin, double k_end) {
  const Function f = expr::parse("mask", mask, some_captures(), Type::kBool);
  const Interval bounds =
      expr::bounds_of(f.graph, f.result, ranges_of(q_begin, q_end, k_begin, k_end), bounds_of_capture);
  return bounds.is_one() ? static_cast<int>(bounds.low) : 2;
}

// Tests typical masks on single tiles.
TEST(Bounds, DecideTilesOfMasks) {
  EXPECT_EQ(tile_of("k <= q", 16, 24, 0, 17), 1);
  EXPECT_EQ(tile_of("k <= q", 0, 8, 8, 16), 0);
  EXPECT_EQ(tile_of("k <= q", 0, 8, 0, 8), 2);
  EXPECT_EQ(tile_of("k <= q && q - k <= 8", 24, 32, 0, 8), 0);
  EXPECT_EQ(tile_of("k <= q && q - k <= 24", 24, 32, 8, 16), 1);
  EXPECT_EQ(tile_of("abs(q - k) <= 7", 16, 20, 16, 20), 1);
  EXPECT_EQ(tile_of("k < 8 || k <= q", 0, 4, 0, 8), 1);
  EXPECT_EQ(tile_of("doc[q] == doc[k]", 0, 7, 7, 14), 0);
  EXPECT_EQ(tile_of("doc[q] == doc[k]", 14, 21, 14, 21), 1);
  EXPECT_EQ(tile_of("doc[q] == doc[k] && k <= q", 7, 14, 7, 8), 1);
  EXPECT_EQ(tile_of("q // 8 == k // 8", 8, 16, 8, 16), 1);
  EXPECT_EQ(tile_of("q // 8 >= k // 8", 0, 8, 8, 16), 0);
  EXPECT_EQ(tile_of("q % 8 >= 4 && k % 8 < 4", 12, 16, 8, 12), 1);
  EXPECT_EQ(tile_of("(q >> 3) == (k >> 3)", 8, 16, 16, 24), 0);
  EXPECT_EQ(tile_of("q % 32 // 8 == k % 32 // 8", 8, 16, 24, 32), 0);
  EXPECT_EQ(tile_of("table[h][0] > 3", 0, 8, 0, 8), 0);
  EXPECT_EQ(tile_of("int(max(3.5, sqrt(float(q - k)))) >= 3", 0, 8, 8, 16), 2) << "of NaN it is 0";
  EXPECT_EQ(tile_of("float(q) >= float(k)", 16777216, 16777217, 16777217, 16777218), 2) << "equal in float32";
}

}  // namespace
}  // namespace attend::test
