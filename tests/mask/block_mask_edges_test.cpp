// Tests edge cases of block masks: threads, lengths, skipped tiles, refused calls, and lifetimes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/block_tiles.hpp"
#include "cpu/backends.hpp"
#include "mask/masked_run.hpp"
#include "support/refusal.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

TEST(BlockMasks, AreTheSameWithAnyNumberOfThreads) {
  const BlockMaskShape shape = {1, 1, 3000, 2000};
  const MaskFunction function("(q * 7 + k * 3) % 11 < 4 && abs(q - k) < 500");
  std::vector<core::SeenTiles> seen[2];
  std::vector<core::TilePattern> patterns[2];
  for (const int threads : {1, 2}) {
    set_cpu_threads(threads);
    const BlockMask mask = make_block_mask(function, shape);
    seen[threads - 1] = mask.state()->seen;
    patterns[threads - 1] = mask.state()->patterns;
  }
  set_cpu_threads(0);
  EXPECT_EQ(patterns[0], patterns[1]);
  ASSERT_EQ(seen[0].size(), seen[1].size());
  EXPECT_EQ(std::memcmp(seen[0].data(), seen[1].data(), seen[0].size() * sizeof(core::SeenTiles)), 0);
}

/// Blocks of 128 keys that no row sees must not be read. These keys are NaN. If a kernel read them, the backend would
/// recompute the rows with the reference.
TEST(BlockMasks, EmptyTilesAreLeftOut) {
  const AttentionCase c = {
      .batch = 1, .heads_q = 2, .heads_k = 1, .seqlen_q = 512, .seqlen_k = 640, .head_dim = 16, .head_dim_v = 16};
  const BlockMask mask = make_block_mask(MaskFunction("k // 128 % 2 == 0 && q // 128 != 1"), {1, 1, 512, 640});
  const Inputs in = make_inputs(c), clean = make_inputs(c);
  const auto poison = [](const TensorBuffer& t, const TensorBuffer& from) {
    t.generate(
        [&](Index b, Index h, Index row, Index col) { return row / 128 % 2 == 1 ? NAN : from.at(b, h, row, col); });
  };
  poison(in.k, clean.k), poison(in.v, clean.v);
  const std::int64_t before = cpu::parts_redone();
  const Outputs got = run_with(&mask, in, "cpu"), wanted = run_with(&mask, clean, "cpu");
  EXPECT_EQ(cpu::parts_redone(), before);
  EXPECT_EQ(got.o.values(), wanted.o.values());
  EXPECT_EQ(got.dq.values(), wanted.dq.values());
  (void)run_with(nullptr, in, "cpu");
  EXPECT_GT(cpu::parts_redone(), before);
}

/// Tiles that the bounds of the mask function decide are not evaluated pair by pair. The time and memory of long masks
/// therefore grow only with the borders of the visible regions.
TEST(BlockMasks, OfLongSequencesCostTheirBorders) {
  constexpr Index kTokens = 1 << 20;
  std::vector<std::int32_t> doc;
  for (Index n = 0; n < kTokens; ++n) doc.push_back(static_cast<std::int32_t>(n / 4000));
  const MaskFunction function("k <= q && doc[q] == doc[k]",
                              {{"doc", {.data = doc.data(), .dtype = DType::kI32, .shape = {kTokens}}}});
  const BlockMask mask = make_block_mask(function, {1, 1, kTokens, kTokens});
  const BlockMask::Tiles tiles = mask.tiles();
  EXPECT_EQ(tiles.all, (kTokens / 64) * (kTokens / 64));
  EXPECT_LT(tiles.full + tiles.partial, 600'000);
  EXPECT_LT(mask.bytes(), std::size_t{64} << 20);
  EXPECT_TRUE(mask.sees(0, 0, 4001, 4000));
  EXPECT_FALSE(mask.sees(0, 0, 4001, 3999));
  EXPECT_FALSE(mask.sees(0, 0, 4001, 4002));
  const BlockMask causal = make_block_mask(MaskFunction("k <= q"), {1, 1, kTokens, kTokens});
  EXPECT_EQ(causal.tiles().full, (kTokens / 64) * (kTokens / 64 - 1) / 2);
  EXPECT_EQ(causal.tiles().patterns, 1);
  EXPECT_LT(causal.bytes(), std::size_t{1} << 20);
}

TEST(BlockMasks, OfEmptySequences) {
  for (const auto& [rows, keys] : {std::pair<Index, Index>{0, 5}, {5, 0}, {0, 0}}) {
    const AttentionCase c = {.batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = rows, .seqlen_k = keys};
    const BlockMask mask = make_block_mask(MaskFunction("k <= q"), {1, 1, rows, keys});
    EXPECT_EQ(mask.density(), 1.0);
    EXPECT_EQ(mask.tiles().all, 0);
    for (const char* compute : {"cpu", "reference"}) {
      const Outputs out = run_with(&mask, make_inputs(c), compute);
      for (const double x : out.o.values()) EXPECT_EQ(x, 0);
      for (const double x : out.dv.values()) EXPECT_EQ(x, 0);
    }
  }
}

TEST(BlockMasks, RefusalsNameTheArgument) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal([] { MaskFunction("score > 0"); }), HasSubstr("mask: column 1"));
  EXPECT_THAT(refusal([] { MaskFunction("k <= "); }), HasSubstr("mask: column"));
  const MaskFunction causal("k <= q"), of_both("k <= q + b + h");
  EXPECT_EQ(refusal([&] { (void)make_block_mask(causal, {0, 1, 4, 4}); }), "batch: 0, allowed 1 to 2147483647");
  EXPECT_EQ(refusal([&] { (void)make_block_mask(causal, {1, 1, -1, 4}); }), "seqlen_q: -1, allowed 0 to 2147483647");
  BlockMask small = make_block_mask(causal, {1, 1, 4, 4});
  const BlockMask moved = std::move(small);
  EXPECT_EQ(small.shape().seqlen_q, 4);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(refusal([&] { (void)small.sees(0, 0, 4, 0); }), "row: 4, allowed 0 to 3");
  const AttentionCase c = {.batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 4, .seqlen_k = 6};
  const auto call_with = [&](const BlockMask& mask, const AttentionCase& of, const char* compute) {
    return refusal([&] {
      const Inputs in = make_inputs(of);
      const Outputs out = make_outputs(in);
      ForwardCall call = forward_of(in, out, compute);
      call.params.block_mask = &mask;
      forward(call);
    });
  };
  EXPECT_EQ(call_with(make_block_mask(of_both, {1, 2, 4, 6}), c, "cpu"),
            "block_mask: batch 1, from a text that reads b, allowed 2");
  EXPECT_THAT(refusal([&] { (void)make_block_mask(of_both, {1 << 20, 1 << 20, 100, 4}); }), HasSubstr("at most 2^28"));
  EXPECT_EQ(call_with(small, c, "cpu"), "block_mask: seqlen_k 4, allowed the call's 6");
  EXPECT_EQ(call_with(make_block_mask(of_both, {3, 2, 4, 6}), c, "cpu"), "block_mask: batch 3, allowed 1 or 2");
  EXPECT_EQ(call_with(make_block_mask(of_both, {2, 4, 4, 6}), c, "cpu"), "block_mask: num_heads 4, allowed 1 or 2");
  AttentionCase packed = c;
  packed.batch = 1, packed.varlen_q = {4}, packed.varlen_k = {6};
  EXPECT_THAT(call_with(make_block_mask(causal, {1, 1, 4, 6}), packed, "cpu"), HasSubstr("given with varlen"));
}

/// The code blocks of the page that begin with ```mask must contain exactly the tested mask texts.
TEST(BlockMasks, OfThePageAreTested) {
  std::ifstream file(ATTEND_TEST_SOURCE_ROOT "/docs/custom_scores.md");
  std::vector<std::string> of_page, tested;
  for (std::string line; std::getline(file, line);) {
    if (line == "```mask" && std::getline(file, line)) of_page.push_back(line);
  }
  for (const MaskRecipe& recipe : mask_cookbook()) tested.push_back(recipe.text);
  EXPECT_EQ(of_page, tested);
}

TEST(BlockMasks, StayWithAPlan) {
  constexpr const char* kText = "k <= q || k % 8 == 3";
  const AttentionCase c = {.batch = 1, .heads_q = 1, .heads_k = 1, .seqlen_q = 70, .seqlen_k = 70};
  const Inputs in = make_inputs(c);
  const Outputs out = make_outputs(in);
  const auto plan_of = [&] {
    const BlockMask mask = make_block_mask(MaskFunction(kText), {1, 1, 70, 70});
    ForwardCall call = forward_of(in, out, "cpu");
    call.params.block_mask = &mask;
    return plan(call);
  };
  plan_of().run();
  const std::vector<double> first = out.o.values();
  const BlockMask same = make_block_mask(MaskFunction(kText), {1, 1, 70, 70});
  const Outputs wanted = run_with(&same, as_f64(in), "reference");
  const std::vector<double> truth = wanted.o.values();
  for (std::size_t n = 0; n < truth.size(); ++n) ASSERT_NEAR(first[n], truth[n], 1e-5);
}

}  // namespace
}  // namespace attend::test
