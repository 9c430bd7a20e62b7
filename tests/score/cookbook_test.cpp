// Tests the score functions of docs/custom_scores.md. Compares the float64 reference with the same function in C++, and
// the other backends with the reference.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "score/cookbook.hpp"

namespace attend::test {
namespace {

class Cookbook : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] static const Recipe& recipe() { return cookbook()[GetParam()]; }
};

INSTANTIATE_TEST_SUITE_P(All, Cookbook, testing::Range<std::size_t>(0, cookbook().size()),
                         [](const auto& test) { return std::to_string(test.param); });

AttentionCase base_case(DType dtype) {
  return {.dtype = dtype,
          .batch = 2,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = 37,
          .seqlen_k = 45,
          .head_dim = 16,
          .head_dim_v = 24,
          .dlse = true,
          .seed = 7};
}

/// Returns four cases: a base case, a case in which query heads share key heads and tiles are partial, and cases with
/// packed sequences, some of them empty.
std::vector<AttentionCase> cases(DType dtype) {
  std::vector<AttentionCase> all(4, base_case(dtype));
  all[1].batch = 1, all[1].heads_k = 1, all[1].seqlen_q = 141, all[1].seqlen_k = 267, all[1].head_dim = 40;
  all[2].varlen_q = {5, 0, 31, 12}, all[2].varlen_k = {9, 4, 0, 40};
  all[3].seqlen_q = 130, all[3].seqlen_k = 164, all[3].causal = true, all[3].dropout_p = 0.2;
  return all;
}

TEST_P(Cookbook, TheReferenceIsTheSameFunctionInCpp) {
  for (const AttentionCase& c : cases(DType::kF64)) {
    const ScoreCase score = with_recipe(c, recipe());
    const Inputs in = make_inputs(c);
    const ScoreResults wanted = oracle_results(score, in, oracle_function(score, recipe().function));
    const std::string line = expect_close(run_score(score, in, "reference"), wanted, 1e-12, 1e-11);
    std::printf("%s reference:%s\n", recipe().name.c_str(), line.c_str());
  }
}

TEST_P(Cookbook, TheOtherBackendsAreTheReference) {
  // For half types the budget is the rounding error of o, p and ds, relative to the largest magnitude.
  const std::vector<std::pair<DType, std::pair<double, double>>> budgets = {
      {DType::kF32, {1e-5, 2e-5}}, {DType::kBF16, {0x1p-7, 0x1p-5}}, {DType::kF16, {0x1p-10, 0x1p-8}}};
  for (const auto& [dtype, budget] : budgets) {
    for (const AttentionCase& c : cases(dtype)) {
      const ScoreCase score = with_recipe(c, recipe());
      const Inputs in = make_inputs(c);
      const ScoreResults truth = run_score(score, as_f64(in), "reference");
      const auto check = [&](const char* compute, bool captures) {
        const std::string line =
            expect_close(run_score(score, in, compute, captures), truth, budget.first, budget.second);
        std::printf("%s %s %s:%s\n", recipe().name.c_str(), compute, dtype_name(dtype), line.c_str());
      };
      check("cpu", true);
      if (dtype == DType::kF32 && !c.packed() && c.dropout_p == 0) check("cpu_naive", false);
    }
  }
}

/// Returns the function texts of the page: the contents of code blocks that begin with ```score.
std::set<std::string> texts_of_page() {
  std::ifstream file(ATTEND_TEST_SOURCE_ROOT "/docs/custom_scores.md");
  std::set<std::string> texts;
  std::string line, text;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line == "```score") {
      inside = true, text.clear();
    } else if (line == "```" && inside) {
      inside = false, texts.insert(text);
    } else if (inside) {
      text += (text.empty() ? "" : "\n") + line;
    }
  }
  return texts;
}

TEST(CookbookPage, HasTheFunctionsThatAreTested) {
  std::set<std::string> tested;
  for (const Recipe& recipe : cookbook()) tested.insert(recipe.text);
  EXPECT_EQ(texts_of_page(), tested);
}

}  // namespace
}  // namespace attend::test
