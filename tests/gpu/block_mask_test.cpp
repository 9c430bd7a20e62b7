// Compares block masks on the GPU with the float64 reference. Runs every mask of the cookbook, forward and backward.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/driver/device.hpp"
#include "gpu/gpu.hpp"
#include "gpu/output_checks.hpp"
#include "mask/mask_cookbook.hpp"
#include "support/attention_case.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

class GpuBlockMasks : public GpuTest, public testing::WithParamInterface<std::tuple<DType, std::size_t>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_forward";
  }
};

INSTANTIATE_TEST_SUITE_P(All, GpuBlockMasks,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF16),
                                          testing::Range<std::size_t>(0, mask_cookbook().size())),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

Outputs run_masked(const BlockMask& mask, const Inputs& in, const char* forward_compute, const char* backward_compute,
                   const ScoreFunction* score = nullptr) {
  const Outputs out = make_outputs(in);
  ForwardCall call = forward_of(in, out, forward_compute);
  call.params.block_mask = &mask;
  call.params.score = score;
  forward(call);
  BackwardCall back = backward_of(in, out, backward_compute);
  back.params.block_mask = &mask;
  back.params.score = score;
  backward(back);
  wait_for(forward_compute);
  return out;
}

std::vector<AttentionCase> cases(DType dtype) {
  const AttentionCase base = {.dtype = dtype,
                              .batch = 2,
                              .heads_q = 4,
                              .heads_k = 2,
                              .seqlen_q = 300,
                              .seqlen_k = 517,
                              .head_dim = 128,
                              .head_dim_v = 128,
                              .dlse = true,
                              .seed = 7};
  std::vector<AttentionCase> all(8, base);
  all[1].head_dim = all[1].head_dim_v = 64, all[1].seqlen_q = 700;
  all[2].head_dim = 96, all[2].head_dim_v = 80, all[2].causal = true, all[2].seqlen_q = 517;
  all[3].head_dim = all[3].head_dim_v = 256, all[3].heads_k = 4;
  all[4].dropout_p = 0.2, all[4].head_dim = all[4].head_dim_v = 64, all[4].heads_k = 1;
  all[5].window_left = 90, all[5].window_right = 40, all[5].sinks = true, all[5].seqlen_q = 517;
  all[6].seqlen_q = 1, all[6].seqlen_k = 129, all[6].head_dim = all[6].head_dim_v = 192;
  all[7].softcap = 10, all[7].head_dim = all[7].head_dim_v = 72, all[7].heads_k = 2;
  return all;
}

void expect_reference(const BlockMask& mask, const AttentionCase& c, const ScoreFunction* score = nullptr) {
  const double results = c.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
  const Inputs in = make_inputs(c);
  const Outputs got = run_masked(mask, in, "sm90_forward", "sm90_backward", score);
  const Outputs truth = run_masked(mask, as_f64(in), "reference", "reference", score);
  std::printf("%s:", describe(c).c_str());
  // In 16-bit dtypes, score functions use fast approximations of tanh and log.
  expect_outputs_near(got, truth, results, score == nullptr ? 4e-6 : results);
}

TEST_P(GpuBlockMasks, AreTheReference) {
  const auto& [dtype, number] = GetParam();
  const MaskRecipe& recipe = mask_cookbook()[number];
  for (const AttentionCase& c : cases(dtype)) {
    SCOPED_TRACE(recipe.name + " " + describe(c));
    const MaskSizes sizes = mask_sizes({c.batch, c.heads_q, c.seqlen_q, c.seqlen_k});
    const std::vector<CaptureBuffer> captures = recipe.captures(sizes);
    const BlockMask mask = make_block_mask(function_of(recipe, captures), sizes.shape);
    expect_reference(mask, c);
  }
}

/// The score functions include one with slope 1 and one with another slope. One function is NaN for keys after the end
/// of the sequence and for hidden keys.
TEST_F(GpuTest, BlockMasksBesideAFunction) {
  if (!cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_forward";
  for (const char* text : {"score - 0.01 * abs(q + k_len - q_len - k)", "8 * tanh(score / 8) - 0.01 * abs(q - k)",
                           "score - log(float(q_len - q)) - log(float(q + k_len - q_len - k + 1))"}) {
    const ScoreFunction score(text);
    for (const AttentionCase& c : cases(DType::kBF16)) {
      if (c.softcap > 0) continue;  // sm90_backward supports no score function together with softcap
      SCOPED_TRACE(text + (" " + describe(c)));
      const BlockMask mask =
          make_block_mask(MaskFunction("k <= q + k_len - q_len && (q // 100 == k // 100 || (q + k) % 64 < 9)"),
                          {1, 1, c.seqlen_q, c.seqlen_k});
      expect_reference(mask, c, &score);
    }
  }
}

/// In deterministic mode dq is summed in a fixed order, so a repeat gives the same bits. The bits must also be the same
/// with a causal mask, which changes the order of key blocks.
TEST_F(GpuTest, BlockMasksWithAnOrderOfAdditions) {
  if (!cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_forward";
  for (AttentionCase c : cases(DType::kBF16)) {
    if (c.softcap > 0 || std::max(c.head_dim, c.head_dim_v) > 128) continue;
    c.deterministic = true;
    SCOPED_TRACE(describe(c));
    const BlockMask mask = make_block_mask(MaskFunction("(q // 50 + k // 70 + h) % 3 != 0 && (q + k) % 5 < 3"),
                                           {1, c.heads_q, c.seqlen_q, c.seqlen_k});
    expect_reference(mask, c);
    const Inputs in = make_inputs(c);
    const Outputs first = run_masked(mask, in, "sm90_forward", "sm90_backward");
    const Outputs again = run_masked(mask, in, "sm90_forward", "sm90_backward");
    EXPECT_EQ(first.dq.values(), again.dq.values());
    EXPECT_EQ(first.dk.values(), again.dk.values());
    EXPECT_EQ(first.dv.values(), again.dv.values());
  }
}

/// These scores are so large that even float64 rounds all scores of a row to the same number. Hidden keys must not
/// enter the row sums.
TEST_F(GpuTest, BlockMasksBesideHugeScores) {
  if (!cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_forward";
  const ScoreFunction score("q % 3 == 0 ? score - 1e30 : score");
  for (AttentionCase c : cases(DType::kBF16)) {
    if (c.softcap > 0 || std::max(c.head_dim, c.head_dim_v) > 128) continue;
    SCOPED_TRACE(describe(c));
    const BlockMask mask = make_block_mask(MaskFunction("(q // 50 + k // 70 + h) % 3 != 0 && (q + k) % 5 < 3"),
                                           {1, c.heads_q, c.seqlen_q, c.seqlen_k});
    expect_reference(mask, c, &score);
  }
}

/// Tiles that no row sees must not be loaded. NaN in their keys must therefore have no effect.
TEST_F(GpuTest, BlockMasksLeaveEmptyTilesOut) {
  if (!cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no instructions for sm90_forward";
  const auto in = UnseenNaN::of({.dtype = DType::kBF16, .head_dim = 128, .head_dim_v = 128});
  const BlockMask mask = make_block_mask(MaskFunction(UnseenNaN::kMask), {1, 1, 512, 768});
  expect_left_out(run_masked(mask, in.poisoned, "sm90_forward", "sm90_backward"),
                  run_masked(mask, in.clean, "sm90_forward", "sm90_backward"));
}

}  // namespace
}  // namespace attend::test
