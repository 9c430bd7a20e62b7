// Tests when sm90_forward splits the keys of a row among blocks, and which tile it chooses for grids that would leave
// many multiprocessors idle. Uses the description of a Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/launch/sm90_forward_split.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kMultiprocessors = 132;

cuda::Choice chosen(const Sizes& sizes, const Params& params = {}) {
  const MadeUp made(DType::kBF16, sizes, params);
  return cuda::find_family("sm90_forward")->choose(made.problem, device("sm_90a", kMultiprocessors));
}

cuda::Sm90ForwardVariant variant(const Sizes& sizes, const Params& params = {}) {
  return chosen(sizes, params).variant.as<cuda::Sm90ForwardVariant>();
}

TEST(SplitKeys, ThereAreForFewRowsOverManyKeys) {
  EXPECT_TRUE(variant({2, 16, 16, 64, 32768, 128, 128}).splits_keys);
  EXPECT_TRUE(variant({1, 4, 4, 1, 4096, 64, 64}).splits_keys);
  EXPECT_TRUE(variant({1, 1, 1, 8192, 8192, 128, 128}).splits_keys);
  EXPECT_FALSE(variant({2, 16, 16, 8192, 8192, 128, 128}).splits_keys);
  EXPECT_FALSE(variant({32, 16, 16, 512, 512, 128, 128}).splits_keys);
  EXPECT_FALSE(variant({1, 1, 1, 1, 128, 128, 128}).splits_keys) << "too few keys for two parts";
}

TEST(SplitKeys, AreMergedByOneKernelMore) {
  const MadeUp made(DType::kBF16, {2, 16, 16, 64, 32768, 128, 128});
  const cuda::DeviceInfo gpu = device("sm_90a", kMultiprocessors);
  const cuda::Family& family = *cuda::find_family("sm90_forward");
  const cuda::Choice choice = family.choose(made.problem, gpu);
  ASSERT_EQ(choice.num_steps, 2);
  const std::int64_t splits = choice.steps[0].blocks / 32;
  EXPECT_EQ(choice.steps[0].blocks, 32 * splits) << "a row tile of each head";
  EXPECT_GE(splits, 2);
  EXPECT_LE(splits, cuda::kSm90MostSplits);
  const std::vector<cuda::KernelSpec> specs = family.kernels(choice.variant, gpu.arch());
  ASSERT_EQ(specs.size(), 2);
  EXPECT_EQ(specs[1].name, "merge");
  const std::int64_t rows = 2 * 16 * 64;
  const cuda::Workspace workspace = family.workspace(made.problem, choice);
  const auto regions = workspace.regions();
  EXPECT_TRUE(std::any_of(regions.begin(), regions.end(),
                          [&](const auto& region) { return region.bytes == splits * rows * (128 + 1) * 4; }));
}

TEST(SplitKeys, AreCutIntoAFewTilesAtLeast) {
  for (const std::int64_t seqlen_k : {1024, 4096, 100000}) {
    const cuda::Choice choice = chosen({1, 1, 1, 64, seqlen_k, 128, 128});
    const auto v = choice.variant.as<cuda::Sm90ForwardVariant>();
    ASSERT_TRUE(v.splits_keys) << seqlen_k;
    EXPECT_GE(seqlen_k, choice.steps[0].blocks * 4 * v.tile.block_n) << seqlen_k;
  }
}

TEST(SplitKeys, AreNotThoseOfARing) {
  MadeUp made(DType::kBF16, {2, 16, 16, 64, 32768, 128, 128});
  EXPECT_TRUE(cuda::sm90_forward_can_split(made.problem));
  made.problem.max_seqlen_k = 0;
  EXPECT_FALSE(cuda::sm90_forward_can_split(made.problem));
}

TEST(Sm90ForwardTiles, AreThoseThatFillTheGpu) {
  const auto consumers = [](const Sizes& sizes) { return variant(sizes).tile.consumers; };
  EXPECT_EQ(consumers({4, 32, 32, 4096, 4096, 64, 64}), 3);
  EXPECT_TRUE(variant({1, 1, 1, 32768, 32768, 64, 64}).splits_keys) << "171 tiles of 192 rows are two waves";
  EXPECT_EQ(consumers({4, 16, 16, 256, 8192, 64, 64}), 2) << "192 rows leave a third of the second tile empty";
}

}  // namespace
}  // namespace attend::test
