// Where the nodes of a function lie when a kernel computes them in float32, point by point: the budget of tests that
// compare kernels with the evaluator in float64.
//
// Interval arithmetic: every operation widens its bounds by what it may round. A comparison, or a function with steps,
// whose operands' bounds allow more than one result is undecided, and so is what depends on it. Numbers that are exact
// in float32 stay single ones: where a step is met exactly, it is decided.
// Source: Moore, Kearfott & Cloud, Introduction to Interval Analysis (2009), chapters 2 and 5
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/graph.hpp"

namespace attend::test {

/// Of kernels/attention/score_math.cuh, by its macro.
enum class ScoreMath : std::uint8_t {
  kExact,  ///< a few units in the last place
  kFast,   ///< ATTEND_FAST_SCORE_MATH
};

struct Bounds {
  double low = 0, high = 0;  ///< both NaN: the value is NaN
  bool is_decided = true;    ///< false: it may be anything

  [[nodiscard]] bool is_point() const;
  [[nodiscard]] bool contains(double x) const;
};

/// One graph's, which must outlive it.
class Float32Bounds {
 public:
  /// load: elements, as of expr::Evaluator.
  Float32Bounds(const expr::Graph& graph, std::vector<expr::Id> results, expr::Load load, ScoreMath math);

  /// The results' bounds, until the next call.
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

/// What an operation makes of operands in these bounds. Not of kConstant, kVariable, kLoad and kSelect.
[[nodiscard]] Bounds bounds_of_operation(expr::Op op, expr::Type operand_type, const Bounds& a, const Bounds& b,
                                         ScoreMath math);

}  // namespace attend::test
