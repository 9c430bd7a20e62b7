// Tests how sm90_backward_panels cuts a problem into panels.
#include <gtest/gtest.h>

#include "cuda/launch/family.hpp"
#include "cuda/launch/sm90_backward_panels_plan.hpp"
#include "cuda/made_up.hpp"

namespace attend::test {
namespace {

using cuda::Sm90BackwardPanelsPlan;
using cuda::Sm90BackwardPanelsVariant;

constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;

MadeUp made(std::int64_t batch, std::int64_t heads, std::int64_t heads_kv, std::int64_t seqlen_q,
            std::int64_t seqlen_k) {
  const Sizes sizes = {.batch = batch,
                       .heads = heads,
                       .heads_kv = heads_kv,
                       .seqlen_q = seqlen_q,
                       .seqlen_k = seqlen_k,
                       .head_dim = 512,
                       .head_dim_v = 512};
  return MadeUp(DType::kBF16, sizes, {}, true);
}

Sm90BackwardPanelsPlan plan_of(const MadeUp& m) {
  return Sm90BackwardPanelsPlan::of(m.problem, Sm90BackwardPanelsVariant{cuda::facts_of(m.problem, false)});
}

TEST(PanelsPlan, HasAsManyUnitsAsFit) {
  const Sm90BackwardPanelsPlan plan = plan_of(made(2, 16, 16, 4096, 4096));
  EXPECT_EQ(plan.units, 32);
  EXPECT_EQ(plan.panel_units, 4);
  EXPECT_EQ(plan.panel_keys, 4096);
  EXPECT_EQ(plan.panel_bytes(), kMostBytes);
  EXPECT_EQ(plan.dq_bytes, 0);
}

TEST(PanelsPlan, HasPanelsOfAboutTheSameSize) {
  const Sm90BackwardPanelsPlan plan = plan_of(made(1, 5, 5, 4000, 4096));
  EXPECT_EQ(plan.panel_units, 3);  // four units fit
}

TEST(PanelsPlan, CutsTheKeysOfALargeUnit) {
  const Sm90BackwardPanelsPlan plan = plan_of(made(1, 8, 2, 8192, 5000));
  EXPECT_EQ(plan.panel_units, 1);
  EXPECT_EQ(plan.panel_keys, 1792);  // 3 panels of 7 tiles for 20 tiles; 8 tiles fit
  EXPECT_EQ(plan.dq_bytes, std::int64_t{4} * 8192 * 512 * 4);
}

TEST(PanelsPlan, IsRefusedBeforeItsSizesOverflow) {
  const cuda::Family& family = *cuda::find_family("sm90_backward_panels");
  MadeUp huge = made(1, 16, 1, 128, 256);
  huge.problem.max_seqlen_q = huge.problem.max_seqlen_k = std::int64_t{1} << 29;
  const auto lack = family.lack(huge.problem, device("sm_90a", 132));
  ASSERT_TRUE(lack.has_value());
  EXPECT_EQ(lack_text(*lack, "x", huge.problem),
            "q: rows of the heads that share a key head, padded to a multiple of 128 each: 8589934592, compute 'x' "
            "allows 1 to 262144");
}

TEST(PanelsPlan, StaysBelowTheLimitOrIsRefused) {
  const cuda::Family& family = *cuda::find_family("sm90_backward_panels");
  int taken = 0, refused = 0;
  for (const std::int64_t heads_kv : {1, 4, 32}) {
    for (const std::int64_t seqlen_q : {1, 130, 3000, 8192, 8193, 300000}) {
      for (const std::int64_t seqlen_k : {1, 257, 10000, 1000000}) {
        const MadeUp m = made(3, 32, heads_kv, seqlen_q, seqlen_k);
        const bool is_refused = family.lack(m.problem, device("sm_90a", 132)).has_value();
        EXPECT_EQ(is_refused, 32 / heads_kv * ((seqlen_q + 127) / 128 * 128) > 262144) << heads_kv << " " << seqlen_q;
        ++(is_refused ? refused : taken);
        if (is_refused) continue;
        const Sm90BackwardPanelsPlan plan = plan_of(m);
        EXPECT_LE(plan.panel_bytes(), kMostBytes);
        EXPECT_EQ(plan.panel_keys % kPanelsKeys, 0);
        EXPECT_EQ(plan.dq_bytes > 0, plan.panel_keys < seqlen_k);
      }
    }
  }
  EXPECT_GT(taken, 40);
  EXPECT_GT(refused, 5);
}

}  // namespace
}  // namespace attend::test
