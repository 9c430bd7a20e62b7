// The functions of docs/custom_scores.md, each beside itself in C++.
#pragma once

#include <string>
#include <vector>

#include "score/function_oracle.hpp"

namespace attend::test {

struct Recipe {
  std::string name;
  std::string text;
  /// Tensors that fit a problem.
  std::function<std::vector<CaptureBuffer>(const AttentionCase& c)> captures;
  std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function;
};

/// In the order of the page.
[[nodiscard]] const std::vector<Recipe>& cookbook();

[[nodiscard]] ScoreCase with_recipe(const AttentionCase& c, const Recipe& recipe);

}  // namespace attend::test
