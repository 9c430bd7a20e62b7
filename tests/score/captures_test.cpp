// Tests the data that a problem gets from a score function: views of its captures, and the keys by which kernels are
// chosen and cached. A capture is a tensor that the function reads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/score_function_state.hpp"

namespace attend::test {
namespace {

const core::CustomScore& custom(const ScoreFunction& function) {
  return function.state()->custom;
}

ScoreFunction with_capture(const char* text, std::vector<std::int64_t> shape, DType dtype = DType::kF32) {
  static float numbers[1] = {};
  return ScoreFunction(text, {{"t", {.data = numbers, .dtype = dtype, .shape = std::move(shape)}}});
}

/// The number of elements exceeds 2^33, so it does not fit in 31, 32 or 33 bits. No element is read.
TEST(ScoreCaptures, AreDenseWithoutStrides) {
  const ScoreFunction function = with_capture("score + t[b][h][q][k]", {3, 5, 65536, 70000});
  EXPECT_EQ(custom(function).captured.front().shape, (Shape{3, 5, 65536, 70000}));
  EXPECT_EQ(custom(function).captured.front().stride,
            (Shape{std::int64_t{5} * 65536 * 70000, std::int64_t{65536} * 70000, 70000, 1}));
  EXPECT_EQ(custom(with_capture("score + t[h]", {7})).captured.front().shape, (Shape{7, 1, 1, 1}));
  EXPECT_EQ(custom(with_capture("score + t", {})).captured.front().shape, (Shape{1, 1, 1, 1}));
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  EXPECT_THROW((void)with_capture("score + t[b][h][q][k]", {most, most, most, most}), Error);
  EXPECT_THROW((void)with_capture("score + t[b][h][q]", {2, most, most}), Error);
}

TEST(ScoreFunctions, AreKeptByTheirCodeAndTheDtypesOfCaptures) {
  const auto digest = [](const ScoreFunction& function) { return custom(function).digest; };
  const ScoreFunction one = with_capture("score + t[h]", {4});
  EXPECT_EQ(digest(one), digest(with_capture("score+t [ h ]", {4})));
  EXPECT_EQ(digest(one), digest(with_capture("score + t[h]", {9}))) << "extents are arguments";
  EXPECT_NE(digest(one), digest(with_capture("score - t[h]", {4})));
  EXPECT_NE(digest(one), digest(with_capture("score + t[h]", {4}, DType::kF16)));
  EXPECT_NE(digest(one), digest(with_capture("score + t[h][0]", {4, 1})));
}

TEST(ScoreFunctions, HaveTraits) {
  const auto traits = [](const char* text) { return custom(ScoreFunction(text)).traits; };
  EXPECT_TRUE(traits("score").changes_nothing());
  EXPECT_TRUE(traits("tanh(score)").transforms);
  EXPECT_FALSE(traits("tanh(score)").masks_from_memory);
  EXPECT_TRUE(traits("score - abs(q - k)").adds_by_position);
  EXPECT_FALSE(traits("score - abs(q - k)").transforms);
  EXPECT_TRUE(traits("q < k ? -inf : score").masks_from_memory);
  EXPECT_TRUE(custom(with_capture("score + t[h]", {4})).traits.adds_from_memory);
}

/// Each `let` uses the previous value twice. Nevertheless, the printed text must grow only linearly.
TEST(ScoreFunctions, OfLetsThatDoubleAreShort) {
  constexpr int kLets = 60;
  const auto length = [](const std::string& first, const auto& next, const std::string& last) {
    std::string text = "let a0 = " + first + ";\n";
    for (int n = 1; n <= kLets; ++n) text += fmt::format("let a{} = {};\n", n, next(fmt::format("a{}", n - 1), n));
    return custom(with_capture((text + last).c_str(), {4})).source.size();
  };
  const auto twice = [](const std::string& a, int /*n*/) { return a + " + " + a; };
  const auto either = [](const std::string& a, int n) { return fmt::format("k % {} == 0 ? {} : {} + 1", n, a, a); };
  constexpr std::size_t kMost = 100'000;
  for (const char* first : {"min(q, 0)", "float(min(q, 0))", "t[h]"}) {
    EXPECT_LT(length(first, twice, fmt::format("score + float(a{})", kLets)), kMost) << first;
  }
  EXPECT_LT(length("score", either, fmt::format("a{}", kLets)), kMost);
}

TEST(ScoreFunctions, HaveCodeForGradientsOfWhatTheValueDependsOn) {
  const auto code = [](const char* text) { return custom(with_capture(text, {4})).gradients; };
  EXPECT_NE(code("score + t[h] * float(q - k)"), "");
  EXPECT_NE(code("score > 0 ? score + t[h] : score"), "");
  EXPECT_NE(code("t[h] * score"), "");
  EXPECT_EQ(code("score + float(q)"), "");
  EXPECT_EQ(code("q > t[h] ? -inf : score"), "");
}

}  // namespace
}  // namespace attend::test
