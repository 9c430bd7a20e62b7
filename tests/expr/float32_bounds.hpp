// Bounds of the nodes of a function when a kernel computes them in float32, point by point. Tests that compare kernels
// with the float64 evaluator use them as the allowed error.
//
// The method is interval arithmetic: every operation widens its bounds by its rounding error. A comparison or step
// function is undecided if the bounds of its operands allow more than one result, and so is every value that depends on
// it. Numbers that float32 represents exactly stay single points, so a step that is met exactly is decided. Source:
// Moore, Kearfott & Cloud, Introduction to Interval Analysis (2009), chapters 2 and 5
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/graph.hpp"

namespace attend::test {

/// The variants of kernels/attention/score_math.cuh, which a macro selects.
enum class ScoreMath : std::uint8_t {
  kExact,  ///< a few units in the last place
  kFast,   ///< ATTEND_FAST_SCORE_MATH
};

struct Bounds {
  double low = 0, high = 0;  ///< both NaN: the value is NaN
  bool is_decided = true;    ///< false: the value may be anything

  [[nodiscard]] bool is_point() const;
  [[nodiscard]] bool contains(double x) const;
};

/// The bounds of one graph, which must outlive this object.
class Float32Bounds {
 public:
  /// @param load returns elements, as for expr::Evaluator
  Float32Bounds(const expr::Graph& graph, std::vector<expr::Id> results, expr::Load load, ScoreMath math);

  /// Returns the results' bounds, valid until the next call.
  [[nodiscard]] std::span<const Bounds> at(const expr::Point& point);

 private:
  [[nodiscard]] Bounds of_node(const expr::Node& node, const expr::Point& point) const;
  [[nodiscard]] Bounds of_load(const expr::Node& node) const;
  [[nodiscard]] const Bounds& arg(const expr::Node& node, std::size_t n) const;

  const expr::Graph& graph_;
  std::vector<expr::Id> results_;
  expr::Load load_;
  ScoreMath math_;
  std::vector<bool> needed_;
  std::vector<Bounds> bounds_, of_results_;
};

/// Returns the bounds of an operation's result for operands in these bounds. Does not support kConstant, kVariable,
/// kLoad and kSelect.
[[nodiscard]] Bounds bounds_of_operation(expr::Op op, expr::Type operand_type, const Bounds& a, const Bounds& b,
                                         ScoreMath math);

}  // namespace attend::test
