// Tests that a score or mask function is replaced by a built-in option if the two have the same effect.
#include <gtest/gtest.h>

#include "attend/block_mask.hpp"
#include "attend/score_function.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

constexpr const char* kOfDistance = "score - slope[h] * abs(q - k)";
constexpr const char* kKeysBefore = "score - slope[h] * (q - k)";

ScoreFunction function(const char* text, DType dtype = DType::kF32, std::int64_t slopes = 8, std::int64_t stride = 1) {
  static const double kSomewhere = 0;
  return ScoreFunction(text, {{"slope",
                               {.data = &kSomewhere,
                                .dtype = dtype,
                                .shape = {slopes},
                                .stride = {stride},
                                .device = {DeviceType::kCUDA, 0}}}});
}

bool is_alibi(const ScoreFunction& score, Params params, const Sizes& sizes = {}) {
  params.score = &score;
  const core::Problem p = MadeUp(DType::kBF16, sizes, params).problem;
  EXPECT_NE(p.alibi_slopes.has_value(), p.custom_score != nullptr);
  return p.alibi_slopes.has_value();
}

TEST(KnownOptions, AFunctionIsAlibi) {
  const ScoreFunction of_distance = function(kOfDistance), keys_before = function(kKeysBefore);
  EXPECT_TRUE(is_alibi(of_distance, {}));
  EXPECT_TRUE(is_alibi(of_distance, {.causal = true}));
  EXPECT_TRUE(is_alibi(keys_before, {.causal = true}));
  EXPECT_FALSE(is_alibi(keys_before, {}));
  EXPECT_FALSE(is_alibi(of_distance, {.window_left = 10, .window_right = 10}));
  EXPECT_FALSE(is_alibi(of_distance, {.causal = true}, {.seqlen_q = 999}));
  EXPECT_FALSE(is_alibi(of_distance, {.causal = true, .dropout_p = 0.1}));
  EXPECT_FALSE(is_alibi(of_distance, {.softcap = 5.0}));
  EXPECT_FALSE(is_alibi(of_distance, {.bias = ConstTensor{.dtype = DType::kBF16}}));
  EXPECT_FALSE(is_alibi(function(kOfDistance, DType::kF16), {}));
  EXPECT_FALSE(is_alibi(function(kOfDistance, DType::kF32, 4), {}));
  EXPECT_FALSE(is_alibi(function(kOfDistance, DType::kF32, 8, -1), {}));
  const BlockMask causal = make_block_mask(MaskFunction("k <= q"), {1, 1, 1000, 1000});
  const BlockMask prefix = make_block_mask(MaskFunction("k <= q || k < 5"), {1, 1, 1000, 1000});
  EXPECT_TRUE(is_alibi(keys_before, {.block_mask = &causal}));
  EXPECT_FALSE(is_alibi(of_distance, {.block_mask = &prefix}));
}

TEST(KnownOptions, ABlockMaskIsAWindow) {
  const auto problem = [](const char* text, std::int64_t rows, std::int64_t keys, Params params = {}) {
    const BlockMask mask = make_block_mask(MaskFunction(text), {1, 1, rows, keys});
    params.block_mask = &mask;
    core::Problem p = MadeUp(DType::kBF16, {.seqlen_q = rows, .seqlen_k = keys}, params).problem;
    return std::tuple(p.block_mask == nullptr, p.window_left, p.window_right);
  };
  EXPECT_EQ(problem("k <= q", 300, 300), std::tuple(true, -1, 0));
  EXPECT_EQ(problem("true", 300, 300), std::tuple(true, -1, -1));
  EXPECT_EQ(problem("abs(q - k) < 10", 300, 300), std::tuple(true, 9, 9));
  EXPECT_EQ(problem("abs(q - k) < 10", 300, 300, {.causal = true}), std::tuple(true, 9, 0));
  EXPECT_EQ(problem("k <= q", 300, 300, {.window_left = 7, .window_right = 7}), std::tuple(true, 7, 0));
  // The causal option aligns the last row with the last key, but the text aligns the first row with the first key.
  EXPECT_EQ(problem("k <= q", 300, 200), std::tuple(true, -1, 100));
  EXPECT_EQ(problem("k <= q", 200, 300), std::tuple(false, -1, -1));
  EXPECT_EQ(problem("k <= q || k < 5", 300, 300), std::tuple(false, -1, -1));
}

}  // namespace
}  // namespace attend::test
