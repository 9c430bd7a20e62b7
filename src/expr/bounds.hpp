// Bounds of a function's value over ranges of its variables. Masks use them to classify tiles as empty or full without
// evaluating single elements.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "expr/graph.hpp"

namespace attend::expr {

/// The numbers from low to high, and also NaN if has_nan is set. A bool has the numbers 0 and 1.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool has_nan = false;

  [[nodiscard]] static constexpr Interval of(double x) {
    Interval one;
    if (x == x) one.low = one.high = x;
    one.has_nan = x != x;
    return one;
  }
  [[nodiscard]] constexpr bool is_one() const { return low == high && !has_nan; }
  [[nodiscard]] constexpr bool contains(double x) const { return x != x ? has_nan : low <= x && x <= high; }
  [[nodiscard]] constexpr Interval hull(const Interval& other) const {
    return {low < other.low ? low : other.low, high > other.high ? high : other.high, has_nan || other.has_nan};
  }
};

/// A range of values for each Variable.
using Ranges = std::array<Interval, kVariables>;

/// Returns bounds of a capture's elements, for all subscripts in the given ranges. The given ranges are within the
/// capture's extents.
using LoadBounds = std::function<Interval(std::int32_t capture, std::span<const Interval> subscripts)>;

/// Returns bounds of the value of `root` if each variable is within its range. The bounds are valid for evaluation in
/// float64 and in float32, but may be wider than necessary. For a bool, {0, 0} means that the value is always false,
/// and {1, 1} means that it is always true.
///
/// Source: Moore, Kearfott & Cloud, Introduction to Interval Analysis (2009), chapters 2 and 5
[[nodiscard]] Interval bounds_of(const Graph& graph, Id root, const Ranges& ranges, const LoadBounds& loads);

}  // namespace attend::expr
