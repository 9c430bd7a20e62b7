// Tests which tile sm90_fp8_forward chooses, and which options it refuses. Uses the description of a Hopper GPU.
#include <gtest/gtest.h>

#include <string>

#include "cuda/launch/sm90_fp8_forward_variant.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

MadeUp eight_bits(const Sizes& sizes, const Params& params = {}) {
  MadeUp made(DType::kBF16, sizes, params);
  made.problem.q.dtype = made.problem.k.dtype = made.problem.v.dtype = DType::kF8E4M3;
  return made;
}

int consumers(const Sizes& sizes, const Params& params = {}) {
  const cuda::Family& family = *cuda::find_family("sm90_fp8_forward");
  const cuda::Choice choice = family.choose(eight_bits(sizes, params).problem, device("sm_90a", 132));
  return choice.variant.as<cuda::Sm90Fp8ForwardVariant>().tile.consumers;
}

/// The sizes are those of the suite Tall in tests/gpu/sm90_fp8_forward_test.cpp.
TEST(Fp8Tiles, HaveSeveralConsumersIfThereAreEnoughRows) {
  EXPECT_EQ(consumers({1, 132, 66, 128, 333, 128, 128}), 2);
  EXPECT_EQ(consumers({1, 132, 132, 130, 260, 128, 128}, {.causal = true}), 2);
  EXPECT_EQ(consumers({1, 132, 132, 256, 130, 128, 128}, {.causal = true}), 2);
  EXPECT_EQ(consumers({1, 132, 132, 200, 300, 128, 128}, {.window_left = 0, .window_right = 40}), 2);
  EXPECT_EQ(consumers({1, 132, 132, 192, 290, 64, 64}), 3);
  EXPECT_EQ(consumers({1, 132, 132, 384, 384, 96, 64}, {.window_left = 70, .window_right = 3}), 2);
  EXPECT_EQ(consumers({1, 2, 1, 200, 300, 128, 128}), 1) << "few rows";
}

TEST(Fp8Forward, RefusesOptionsByName) {
  const cuda::Family& family = *cuda::find_family("sm90_fp8_forward");
  const auto refused = [&](const Params& params) {
    const auto lack = family.lack(eight_bits({}, params).problem, device("sm_90a", 132));
    return lack ? lack_text(*lack, "x", eight_bits({}, params).problem) : std::string();
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_NE(refused({.softcap = 5}).find("softcap"), std::string::npos);
  EXPECT_NE(refused({.dropout_p = 0.1}).find("dropout_p"), std::string::npos);
  EXPECT_NE(refused({.bias = Tensor{.dtype = DType::kBF16}}).find("bias"), std::string::npos);
  EXPECT_NE(refused({.sinks = Tensor{.dtype = DType::kF32}}).find("sinks"), std::string::npos);
}

}  // namespace
}  // namespace attend::test
