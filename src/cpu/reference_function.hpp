// A problem's score function in float64, a score at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "expr/evaluate.hpp"

namespace attend::cpu {

/// An element of a capture as the function has it; subscripts are within the tensor.
[[nodiscard]] double captured_element(const core::CustomScore& score, std::size_t capture,
                                      std::span<const std::int64_t> subscripts);

/// For one query head of one sequence, and one thread.
class ReferenceFunction {
 public:
  /// The problem has a function with a program.
  ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head);

  struct Value {
    double score;
    double slope;  // by the score before
  };
  /// Of row i and key j.
  [[nodiscard]] Value at(std::int64_t i, std::int64_t j, double score);

  /// Nodes of the function's graph instead.
  ReferenceFunction(const core::Problem& p, const core::Sequence& s, std::int64_t head, std::vector<expr::Id> nodes);
  [[nodiscard]] std::span<const double> nodes_at(std::int64_t i, std::int64_t j, double score);

 private:
  const core::Sequence s_;
  std::int64_t head_;
  expr::Evaluator evaluator_;
};

}  // namespace attend::cpu
