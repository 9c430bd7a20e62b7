// Tests which rows a rank holds, and the conversion of tensors to shards and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attend/ring.hpp"
#include "support/expect.hpp"
#include "support/refusal.hpp"

namespace attend::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Sharding kShardings[] = {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped};

TEST(Sharding, HoldsTheRowsOfTheTableInTheHeader) {
  EXPECT_THAT(shard_positions(Sharding::kContiguous, 12, 1, 3), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(shard_positions(Sharding::kZigzag, 12, 0, 3), ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(shard_positions(Sharding::kZigzag, 12, 1, 3), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(shard_positions(Sharding::kZigzag, 12, 2, 3), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(shard_positions(Sharding::kStriped, 12, 2, 3), ElementsAre(2, 5, 8, 11));
}

TEST(Sharding, CutsEachPackedSequenceByItself) {
  const std::vector<std::int32_t> cu_seqlens = {0, 5, 5, 9};
  EXPECT_THAT(shard_positions(Sharding::kStriped, 9, 1, 2, cu_seqlens), ElementsAre(1, 3, 6, 8));
  EXPECT_THAT(shard_positions(Sharding::kZigzag, 9, 0, 2, cu_seqlens), ElementsAre(0, 3, 4, 5, 8));
  EXPECT_THAT(shard_positions(Sharding::kZigzag, 9, 1, 2, cu_seqlens), ElementsAre(1, 2, 6, 7));
}

TEST(Sharding, GivesEveryRowToOneRank) {
  const std::vector<std::vector<std::int32_t>> packed = {{}, {0, 0}, {0, 1, 1, 30, 37}};
  for (const Sharding sharding : kShardings) {
    for (const auto& cu_seqlens : packed) {
      for (const std::int64_t seqlen : {0, 1, 2, 7, 8, 13, 37}) {
        if (!cu_seqlens.empty() && cu_seqlens.back() != seqlen) continue;
        for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
          std::vector<std::int64_t> all;
          for (int rank = 0; rank < num_ranks; ++rank) {
            const auto rows = shard_positions(sharding, seqlen, rank, num_ranks, cu_seqlens);
            EXPECT_EQ(rows.size(), shard_seqlen(sharding, seqlen, rank, num_ranks, cu_seqlens));
            EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
            all.insert(all.end(), rows.begin(), rows.end());
          }
          std::sort(all.begin(), all.end());
          std::vector<std::int64_t> want(static_cast<std::size_t>(seqlen));
          std::iota(want.begin(), want.end(), 0);
          EXPECT_EQ(all, want) << sharding_name(sharding) << " of " << seqlen << " over " << num_ranks;
        }
      }
    }
  }
}

TEST(Sharding, GoesThereAndBack) {
  for (const Sharding sharding : kShardings) {
    const TensorBuffer whole = made(DType::kBF16, {2, 3, 19, 5}, [](auto b, auto h, auto row, auto c) {
      return double(b * 64 + h * 32 + row) + 0.125 * double(c % 2);
    });
    const TensorBuffer back(DType::kBF16, whole.shape(), {Layout::kPadded, 1});
    for (int rank = 0; rank < 4; ++rank) {
      const auto positions = shard_positions(sharding, 19, rank, 4);
      const TensorBuffer local(DType::kBF16, {2, 3, std::int64_t(positions.size()), 5}, {Layout::kBSHD, 3});
      shard(sharding, whole.view(), local.view(), rank, 4);
      for (std::size_t row = 0; row < positions.size(); ++row) {
        EXPECT_EQ(local.at(1, 2, std::int64_t(row), 4), whole.at(1, 2, positions[row], 4));
      }
      unshard(sharding, local.view(), back.view(), rank, 4);
      EXPECT_TRUE(local.gaps_intact());
    }
    expect_same_bits("back", back, whole);
    EXPECT_TRUE(back.gaps_intact());
  }
}

TEST(Sharding, RefusesWhatMakesNoSense) {
  const auto seqlen = [](std::int64_t n, int rank, int num_ranks, std::vector<std::int32_t> cu_seqlens) {
    return refusal([&] { (void)shard_seqlen(Sharding::kZigzag, n, rank, num_ranks, cu_seqlens); });
  };
  EXPECT_EQ(seqlen(-1, 0, 1, {}), "seqlen: -1, allowed 0 to 2147483647");
  EXPECT_EQ(seqlen(4, 0, 0, {}), "num_ranks: 0, allowed >= 1");
  EXPECT_EQ(seqlen(4, 2, 2, {}), "rank: 2, allowed 0 to 1");
  EXPECT_EQ(seqlen(4, 0, 2, {1, 4}), "cu_seqlens: first entry 1, allowed 0");
  EXPECT_EQ(seqlen(4, 0, 2, {0, 3, 2}), "cu_seqlens: entry 2 is 2 after 3, allowed non-decreasing");
  EXPECT_EQ(seqlen(4, 0, 2, {0, 3}), "cu_seqlens: last entry 3, allowed seqlen 4");
  const TensorBuffer whole(DType::kF32, {1, 1, 4, 2}), local(DType::kF32, {1, 1, 3, 2}),
      half(DType::kF16, {1, 1, 2, 2});
  EXPECT_EQ(refusal([&] { shard(Sharding::kStriped, whole.view(), local.view(), 0, 2); }),
            "local: shape (1, 1, 3, 2), allowed (1, 1, 2, 2) on rank 0 of 2 with striped sharding");
  EXPECT_EQ(refusal([&] { unshard(Sharding::kStriped, half.view(), whole.view(), 0, 2); }),
            "local: dtype f16, allowed f32 of whole");
  Tensor elsewhere = whole.view();
  elsewhere.device = {DeviceType::kCUDA, 1};
  EXPECT_THAT(refusal([&] { shard(Sharding::kStriped, elsewhere, local.view(), 0, 2); }),
              HasSubstr("whole: on cuda 1"));
}

}  // namespace
}  // namespace attend::test
