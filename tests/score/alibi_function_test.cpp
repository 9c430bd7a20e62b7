// Tests that a score function is recognised as the option alibi_slopes if, and only if, the two are equal.
#include <gtest/gtest.h>

#include "attend/score_function.hpp"
#include "core/score_function_state.hpp"

namespace attend::test {
namespace {

using core::AlibiForm;

AlibiForm form_of(const char* text, bool has_another = false) {
  static const float kSomewhere[4] = {};
  std::vector<ScoreCapture> captures = {
      {"slope", {.data = kSomewhere, .dtype = DType::kF32, .shape = {4}, .device = {DeviceType::kCPU, 0}}}};
  if (has_another) captures.push_back({"bias", captures[0].tensor});
  return ScoreFunction(text, captures).state()->custom.alibi;
}

TEST(AlibiFunction, IsKnownByItsText) {
  for (const char* text :
       {"score - slope[h] * abs(q - k)", "score - abs(k - q) * slope[h]", "-abs(q - k) * slope[h] + score",
        "let d = abs(q - k); score - slope[h] * d", "score + slope[h] * -abs(q - k)"}) {
    EXPECT_EQ(form_of(text), AlibiForm::kDistance) << text;
  }
  for (const char* text : {"score - slope[h] * (q - k)", "score + slope[h] * (k - q)", "(k - q) * slope[h] + score"}) {
    EXPECT_EQ(form_of(text), AlibiForm::kKeysBefore) << text;
  }
  for (const char* text :
       {"score + slope[h] * abs(q - k)", "score + slope[h] * (q - k)", "score - slope[b] * abs(q - k)",
        "score - 2 * slope[h] * abs(q - k)", "score - slope[h + 1] * abs(q - k)", "slope[h] * abs(q - k) - score",
        "score * slope[h] - abs(q - k)", "score - slope[h] * abs(q + k)", "score - slope[h] * abs(q - k - 1)",
        "score - slope[h] * sqrt(abs(q - k))", "2 * score - slope[h] * abs(q - k)", "score - slope[h]"}) {
    EXPECT_EQ(form_of(text), AlibiForm::kNone) << text;
  }
  EXPECT_EQ(form_of("score - slope[h] * abs(q - k) + bias[h]", true), AlibiForm::kNone);
}

}  // namespace
}  // namespace attend::test
