// The functions of docs/custom_scores.md, each with a C++ version of it.
#pragma once

#include <string>
#include <vector>

#include "score/function_oracle.hpp"

namespace attend::test {

struct Recipe {
  std::string name;
  std::string text;
  /// Makes tensors that fit a problem.
  std::function<std::vector<CaptureBuffer>(const AttentionCase& c)> captures;
  std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function;
};

/// Returns the functions in the order of the page.
[[nodiscard]] const std::vector<Recipe>& cookbook();

[[nodiscard]] ScoreCase with_recipe(const AttentionCase& c, const Recipe& recipe);

}  // namespace attend::test
