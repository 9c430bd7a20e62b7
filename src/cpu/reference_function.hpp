// Evaluates a problem's score function in float64, one score at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "expr/evaluate.hpp"

namespace attend::cpu {

/// Returns an element of a capture as the number that the function reads. Subscripts must be within the tensor.
[[nodiscard]] double captured_element(const core::CustomScore& score, std::size_t capture,
                                      std::span<const std::int64_t> subscripts);

/// Evaluates the function for one query head of one sequence. Not thread-safe.
class ReferenceFunction {
 public:
  /// The problem must have a function with a program.
  ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head);

  struct Value {
    double score;
    double slope;  // derivative with respect to the score before the function
  };
  /// Returns the function's score and its slope for row i and key j.
  [[nodiscard]] Value at(std::int64_t i, std::int64_t j, double score);

  /// Makes an object that evaluates the given nodes of the function's graph instead of the node of the score.
  ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::vector<expr::Id> nodes);
  [[nodiscard]] std::span<const double> nodes_at(std::int64_t i, std::int64_t j, double score);

 private:
  const core::Sequence s_;
  std::int64_t head_;
  expr::Evaluator evaluator_;
};

}  // namespace attend::cpu
