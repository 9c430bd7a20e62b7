// Bounds for the value of each node when a kernel computes a score function in float32 at one point. Tests that compare
// kernels with the float64 evaluator use these bounds as the allowed error.
//
// The method is interval arithmetic. Every operation widens its bounds by its rounding error. A comparison or step
// function is undecided if the bounds of its operands allow more than one result. Every value that depends on it is
// then undecided too. Numbers that float32 represents exactly stay single points, so a value that lies exactly on a
// step is decided. Source: Moore, Kearfott & Cloud, Introduction to Interval Analysis (2009), chapters 2 and 5
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "expr/evaluate.hpp"
#include "expr/graph.hpp"

namespace attend::test {

/// The variants of the functions in kernels/attention/score_math.cuh.
enum class ScoreMath : std::uint8_t {
  kExact,  ///< error of a few units in the last place
  kFast,   ///< fast approximations, selected by the macro ATTEND_FAST_SCORE_MATH
};

struct Bounds {
  double low = 0, high = 0;  ///< smallest and largest possible value; both are NaN if the value is NaN
  bool is_decided = true;    ///< if false, the value may be any number

  [[nodiscard]] bool is_point() const;
  [[nodiscard]] bool contains(double x) const;
};

/// Computes the bounds of the nodes of one graph. The graph must outlive this object.
class Float32Bounds {
 public:
  /// @param load returns the elements of captures, as for expr::Evaluator
  Float32Bounds(const expr::Graph& graph, std::vector<expr::Id> results, expr::Load load, ScoreMath math);

  /// Returns the bounds of the results at a point. The returned bounds are valid until the next call.
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

/// Returns the bounds of an operation's result if its operands lie within `a` and `b`. Does not support kConstant,
/// kVariable, kLoad and kSelect.
[[nodiscard]] Bounds bounds_of_operation(expr::Op op, expr::Type operand_type, const Bounds& a, const Bounds& b,
                                         ScoreMath math);

}  // namespace attend::test
