// The score functions of docs/custom_scores.md. Each has a C++ version that computes the same score.
#pragma once

#include <string>
#include <vector>

#include "score/function_oracle.hpp"

namespace attend::test {

struct Recipe {
  std::string name;
  std::string text;
  /// Makes the tensors that the function reads, in sizes that match the problem.
  std::function<std::vector<CaptureBuffer>(const AttentionCase& c)> captures;
  std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function;
};

/// Returns the functions in the order in which the page lists them.
[[nodiscard]] const std::vector<Recipe>& cookbook();

[[nodiscard]] ScoreCase with_recipe(const AttentionCase& c, const Recipe& recipe);

}  // namespace attend::test
