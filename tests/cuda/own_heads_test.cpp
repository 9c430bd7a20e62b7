// Tests when a block of the backward pass computes complete heads, and when blocks of up to 64 columns are persistent.
// Uses the description of a Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "cuda/launch/sm90_backward_plan.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

cuda::DeviceInfo hopper() {
  cuda::DeviceInfo gpu = device("sm_90a", 132);
  gpu.l2_bytes = std::size_t{50} << 20;
  return gpu;
}

Sizes square(std::int64_t batch, std::int64_t heads, std::int64_t seqlen, std::int64_t head_dim) {
  return {batch, heads, heads, seqlen, seqlen, head_dim, head_dim};
}

bool owns(const Sizes& sizes, const Params& params = {}) {
  return cuda::sm90_backward_owns_heads(MadeUp(DType::kBF16, sizes, params, true).problem, hopper());
}

TEST(OwnHeads, AreThoseWhoseRowsFitIntoTheCache) {
  EXPECT_TRUE(owns(square(32, 32, 512, 64)));
  EXPECT_TRUE(owns(square(64, 16, 256, 128)));
  EXPECT_FALSE(owns(square(32, 16, 512, 128)));
  EXPECT_FALSE(owns(square(16, 32, 1024, 64)));
  const Params causal = {.causal = true};
  EXPECT_TRUE(owns(square(32, 16, 512, 128), causal));
  EXPECT_TRUE(owns(square(16, 32, 1024, 64), causal));
  EXPECT_FALSE(owns(square(16, 16, 1024, 128), causal));
}

TEST(OwnHeads, KeepAllMultiprocessorsBusy) {
  EXPECT_TRUE(owns(square(1, 132, 256, 64)));
  EXPECT_FALSE(owns(square(1, 133, 256, 64)));
  EXPECT_FALSE(owns(square(4, 16, 256, 64)));
  EXPECT_TRUE(owns(square(1, 250, 256, 64)));
}

TEST(OwnHeads, SeeAKeyInEachTileOfRows) {
  const Params causal = {.causal = true};
  EXPECT_TRUE(owns({12, 11, 11, 200, 190, 64, 64}, causal));
  EXPECT_TRUE(owns({12, 11, 11, 200, 137, 64, 64}, causal));   // row 63 sees key 0
  EXPECT_FALSE(owns({12, 11, 11, 200, 136, 64, 64}, causal));  // the first row tile sees no key
  EXPECT_TRUE(owns({12, 11, 11, 200, 136, 64, 64}));
}

TEST(OwnHeads, ExcludeWhatTheirKernelDoesNotTake) {
  EXPECT_FALSE(owns({12, 11, 1, 200, 200, 64, 64})) << "heads of a group share keys";
  EXPECT_FALSE(owns(square(12, 11, 200, 192))) << "wide";
  const Tensor given = {.dtype = DType::kF32};
  EXPECT_TRUE(owns(square(12, 11, 200, 64), {.causal = true, .alibi_slopes = given}));
  EXPECT_FALSE(owns(square(12, 11, 200, 64), {.causal = true, .alibi_slopes = given, .dropout_p = 0.1}));
}

TEST(OwnHeads, TakeNoKernelBehindAndMemoryForOneHeadABlock) {
  const MadeUp made(DType::kBF16, square(32, 32, 512, 64), {.deterministic = true}, true);
  const cuda::DeviceInfo gpu = hopper();
  const cuda::Family& family = *cuda::find_family("sm90_backward");
  const cuda::Choice choice = family.choose(made.problem, gpu);
  ASSERT_EQ(choice.num_steps, 2);
  EXPECT_EQ(choice.steps[1].blocks, 132);
  const std::vector<cuda::KernelSpec> specs = family.kernels(choice.variant, gpu.arch());
  ASSERT_EQ(specs.size(), 2);
  EXPECT_EQ(specs[1].name, "sm90_backward");
  const auto has = [&](const char* name, bool value) {
    return std::any_of(specs[1].config.begin(), specs[1].config.end(), [&](const cuda::Constant& c) {
      const bool* const found = std::get_if<bool>(&c.value);
      return c.name == name && found != nullptr && *found == value;
    });
  };
  EXPECT_TRUE(has("kOwnsHeads", true));
  EXPECT_TRUE(has("kIsDeterministic", false)) << "their order is fixed anyhow";
  const std::int64_t sums = std::int64_t{132} * 512 * 64 * 4;
  const auto bytes = static_cast<std::int64_t>(family.workspace(made.problem, choice).regions().front().bytes);
  EXPECT_GT(bytes, sums);
  EXPECT_LT(bytes, std::int64_t{32} * 32 * 512 * 64 * 4) << "of all heads";
}

bool is_persistent(const Sizes& sizes, const Params& params = {}) {
  const MadeUp made(DType::kBF16, sizes, params, true);
  const cuda::Family& family = *cuda::find_family("sm90_backward");
  return family.choose(made.problem, hopper()).variant.as<cuda::Sm90BackwardVariant>().is_persistent != 0;
}

TEST(PersistentBlocks, DivideTheWorkOfFewHeads) {
  const Params causal = {.causal = true};
  EXPECT_TRUE(is_persistent(square(1, 1, 32768, 64)));
  EXPECT_TRUE(is_persistent(square(1, 1, 32768, 64), causal));
  EXPECT_TRUE(is_persistent(square(2, 4, 4096, 64)));
  EXPECT_TRUE(is_persistent(square(1, 8, 2048, 40), causal));
}

TEST(PersistentBlocks, AreNotUsedIfLargerOnesKeepAllMultiprocessorsBusy) {
  const Params causal = {.causal = true};
  EXPECT_FALSE(is_persistent(square(1, 12, 8192, 64)));
  EXPECT_FALSE(is_persistent(square(8, 32, 2048, 64)));
  EXPECT_FALSE(is_persistent(square(8, 32, 2048, 64), causal));
  EXPECT_FALSE(is_persistent({4, 16, 16, 256, 8192, 64, 64}));
  for (const std::int64_t seqlen_k : {150, 180, 190, 192, 384}) {
    for (const Params& params : {Params{}, causal, Params{.window_left = 60, .window_right = 10}}) {
      EXPECT_FALSE(is_persistent({12, 44, 22, 130, seqlen_k, 64, 64}, params)) << seqlen_k;
    }
  }
}

/// The kernel before the main kernel resets the flags with which persistent blocks pass partial sums.
TEST(PersistentBlocks, AreKnownToTheKernelThatResetsTheirCounters) {
  const MadeUp made(DType::kBF16, square(1, 1, 32768, 64), {}, true);
  const cuda::DeviceInfo gpu = hopper();
  const cuda::Family& family = *cuda::find_family("sm90_backward");
  const std::vector<cuda::KernelSpec> specs = family.kernels(family.choose(made.problem, gpu).variant, gpu.arch());
  for (const char* name : {"sm90_backward_prepare", "sm90_backward"}) {
    const auto spec =
        std::ranges::find(specs, std::string_view(name), [](const cuda::KernelSpec& s) { return s.name; });
    ASSERT_NE(spec, specs.end());
    const auto constant =
        std::ranges::find(spec->config, "kIsPersistent", [](const cuda::Constant& c) { return c.name; });
    ASSERT_NE(constant, spec->config.end());
    EXPECT_EQ(std::get<bool>(constant->value), true) << name;
  }
}

TEST(PersistentBlocks, ExcludeWhatHasNotBeenMeasured) {
  const Tensor given = {.dtype = DType::kF32};
  EXPECT_TRUE(is_persistent(square(1, 1, 4096, 64), {.causal = true, .alibi_slopes = given}));
  EXPECT_FALSE(is_persistent(square(1, 1, 4096, 64), {.causal = true, .alibi_slopes = given, .dropout_p = 0.1}));
  EXPECT_FALSE(is_persistent(square(1, 1, 4096, 64), {.deterministic = true}));
  EXPECT_FALSE(is_persistent(square(1, 1, 4096, 128))) << "they are persistent anyway";
}

}  // namespace
}  // namespace attend::test
