// Tests the index arithmetic of the tensor-core kernels on the host. Checks which thread owns which score, which scores
// are masked, where the chunks of a tile are stored in shared memory, which tiles a block visits, and the online
// softmax.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/attention/accumulator_scores.cuh"
#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/work.cuh"
#include "kernels/isa/smem_address.cuh"
#include "kernels/ladder/pieces/row_tile.cuh"
#include "kernels/tiles/accumulator_mask.cuh"

namespace attend::test {
namespace {

constexpr int kWarp = 32;
constexpr int kColumns = 32;
constexpr int kValues = kColumns / 2;  // values that each thread holds

int row_of(int thread, int value) {
  return accumulator_row(thread) + value / 2 % 2 * kRowHalf;
}

int column_of(int thread, int value) {
  return value / 4 * kColumnsOfTile + accumulator_column(thread) + value % 2;
}

TEST(Accumulator, EveryEntryHasOneOwner) {
  constexpr int kRows = 64;  // rows that one warpgroup computes
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 4 * kWarp; ++thread) {
    for (int value = 0; value < kValues; ++value) seen.insert({row_of(thread, value), column_of(thread, value)});
  }
  EXPECT_EQ(seen.size(), kRows * kColumns);
  EXPECT_EQ(*seen.rbegin(), (std::pair{kRows - 1, kColumns - 1}));
}

TEST(Accumulator, MasksWhatTheRowDoesNotSee) {
  for (int visible = 0; visible <= kColumns; ++visible) {
    for (int thread = 0; thread < kWarp; ++thread) {
      const std::array<int, kRowsOfThread> keys = {visible, kColumns - visible};
      const int num_keys[kRowsOfThread] = {keys[0], keys[1]};
      float score[kValues];
      for (float& s : score) s = std::numeric_limits<float>::quiet_NaN();
      mask_keys(score, thread, num_keys);
      for (int value = 0; value < kValues; ++value) {
        const bool sees = column_of(thread, value) < keys[value / 2 % 2];
        EXPECT_EQ(std::isnan(score[value]), sees) << thread << " " << value << " " << visible;
        EXPECT_EQ(score[value] == -kInfinity, !sees);
      }
    }
  }
}

TEST(Accumulator, KeysInTile) {
  EXPECT_EQ(keys_in_tile(0, 128, 64), 0);
  EXPECT_EQ(keys_in_tile(128, 128, 64), 0);
  EXPECT_EQ(keys_in_tile(129, 128, 64), 1);
  EXPECT_EQ(keys_in_tile(192, 128, 64), 64);
  EXPECT_EQ(keys_in_tile(int64{1} << 31, 128, 64), 64);
}

TEST(Accumulator, RowsAreReducedAndScaledApart) {
  float value[8] = {1, 5, 10, 20, 3, 2, 40, 30};
  EXPECT_EQ(thread_row_max(value, 0), 5);
  EXPECT_EQ(thread_row_max(value, 1), 40);
  EXPECT_EQ(thread_row_sum(value, 0), 11);
  EXPECT_EQ(thread_row_sum(value, 1), 100);
  scale_rows(value, {2, 3});
  EXPECT_EQ(value[1], 10);
  EXPECT_EQ(value[2], 30);
  EXPECT_EQ(value[7], 90);
}

TEST(OnlineSoftmax, ExponentsOfRowsThatSeeNothingAreZero) {
  float score[8] = {0, 1, -kInfinity, -kInfinity, 2, -kInfinity, -kInfinity, -kInfinity};
  exp2_rows(score, 2.0f, {4.0f, -kInfinity});
  EXPECT_EQ(score[0], 0.0625f);
  EXPECT_EQ(score[1], 0.25f);
  EXPECT_EQ(score[4], 1.0f);
  EXPECT_EQ(score[5], 0.0f);
  for (const int value : {2, 3, 6, 7}) EXPECT_EQ(score[value], 0.0f);
}

// A bias of -FLT_MAX is often used as a mask. Let s be a score of -FLT_MAX, and let c be log2(e). If the kernel
// computed 2^(c s - m), where m is the row maximum in units of c s, the product c s would overflow to -inf.
TEST(OnlineSoftmax, NaturalUnitsHoldWhatFloatHolds) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  float score[4] = {kLeast, kLeast, 1.0f, -1.0f};
  exp2_rows<ScoreUnits::kNatural>(score, kLog2E, {kLeast, 1.0f});
  EXPECT_EQ(score[0], 1.0f);
  EXPECT_EQ(score[1], 1.0f);
  EXPECT_EQ(score[2], 1.0f);
  EXPECT_NEAR(score[3], std::exp(-2.0), 1e-7);
}

// Checks the kernel's decision which scores are visible against the definition of the mask, for every row and column of
// a tile.
template <MaskKind kMask, bool kTransposed>
void check_seen(const WindowMask& window, int64 first_row, int64 first_key) {
  constexpr int kLines = 64;
  constexpr bool kHasBegin = kTransposed ? SeenColumns::kKeysHaveBegin<kMask> : SeenColumns::kRowsHaveBegin<kMask>;
  const TileView view = TileView::of(window, first_row, first_key);
  int num_seen = 0;
  for (int thread = 0; thread < 4 * kWarp; ++thread) {
    const SeenColumns seen =
        kTransposed ? SeenColumns::of_keys<kMask>(view, thread) : SeenColumns::of_rows<kMask>(view, thread);
    for (int value = 0; value < kValues; ++value) {
      const int h = value / 2 % 2;
      const int column = column_of(thread, value);
      const int64 row = first_row + (kTransposed ? column : row_of(thread, value));
      const int64 key = first_key + (kTransposed ? row_of(thread, value) : column);
      const int in_thread = column - accumulator_column(thread);
      const bool after_begin = !kHasBegin || in_thread >= seen.begin[h];
      const bool expected = row < window.seqlen_q && window.row(row).contains(key);
      ASSERT_EQ(after_begin && in_thread < seen.end[h], expected) << row << ", " << key;
      num_seen += static_cast<int>(expected);
    }
  }
  const bool all = kTransposed ? view.all_visible<kColumns, kLines>() : view.all_visible<kLines, kColumns>();
  EXPECT_EQ(all, num_seen == kLines * kColumns) << first_row << ", " << first_key;
}

template <MaskKind kMask>
void check_seen_in_all_tiles(const WindowMask& window) {
  for (const int64 first_row : {0, 64, 128}) {
    for (const int64 first_key : {0, 32, 64, 96, 128, 192}) {
      check_seen<kMask, false>(window, first_row, first_key);
      check_seen<kMask, true>(window, first_row, first_key);
    }
  }
}

TEST(AccumulatorScores, SeeWhatTheMaskSays) {
  for (const int64 seqlen_q : {1, 100, 192}) {
    for (const int64 seqlen_k : {0, 1, 97, 256}) {
      check_seen_in_all_tiles<MaskKind::kFull>({seqlen_q, seqlen_k, kOpenWindow, kOpenWindow});
      check_seen_in_all_tiles<MaskKind::kCausal>({seqlen_q, seqlen_k, kOpenWindow, 0});
      for (const int64 left : {kOpenWindow, int64{0}, int64{40}, (int64{1} << 31) - 1}) {
        for (const int64 right : {kOpenWindow, int64{0}, int64{7}, (int64{1} << 31) - 1}) {
          check_seen_in_all_tiles<MaskKind::kWindow>({seqlen_q, seqlen_k, left, right});
        }
      }
    }
  }
}

// Simulates how the lanes of a warp exchange dropout decisions. Compares the decision for each value with the
// definition.
class AccumulatorDropout : public testing::Test {
 protected:
  static constexpr int64 kRow = 1000, kKey = 640;
  const DropMask dropout_ = DropMask::make(0x1234567890ULL, 77, 5, 0.4);

  [[nodiscard]] uint32 nibble(int64 row, int64 key) const {
    uint32 bits = 0;
    for (int n = 0; n < 4; ++n) bits |= static_cast<uint32>(dropout_.keeps(row, key + n)) << n;
    return bits;
  }
};

TEST_F(AccumulatorDropout, TwoLanesShareABlock) {
  std::array<uint32, kWarp> computed = {};
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int j = 0; j < kColumns / kColumnsOfTile; ++j) {
      const int64 row = kRow + accumulator_row(lane) + lane % 2 * kRowHalf;
      const int64 key = kKey + j * kColumnsOfTile + accumulator_column(lane) / 4 * 4;
      computed[lane] |= nibble(row, key) << 4 * j;
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const uint32 kept = kept_of_pair(computed[lane], computed[lane ^ 1], lane);
    for (int value = 0; value < kValues; ++value) {
      EXPECT_EQ((kept >> value & 1) != 0, dropout_.keeps(kRow + row_of(lane, value), kKey + column_of(lane, value)));
    }
  }
}

TEST_F(AccumulatorDropout, TransposedFourLanesShareABlock) {
  std::array<uint32, kWarp> computed = {};
  for (int lane = 0; lane < kWarp; ++lane) {
    const int c = lane / 4 % 4;
    for (int j = 0; j < kColumns / kColumnsOfTile; ++j) {
      const int64 row = kRow + j * kColumnsOfTile + accumulator_column(lane) + c % 2;
      const int64 key = kKey + (accumulator_row(lane) + c / 2 * kRowHalf) / 4 * 4;
      computed[lane] |= nibble(row, key) << 4 * j;
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    uint32 kept = 0;
    for (int distance = 0; distance < 4; ++distance) {
      kept |= kept_of_four(computed[lane ^ 4 * distance], distance, lane);
    }
    for (int value = 0; value < kValues; ++value) {
      EXPECT_EQ((kept >> value & 1) != 0, dropout_.keeps(kRow + column_of(lane, value), kKey + row_of(lane, value)));
    }
  }
}

TEST(Swizzle, IsAPermutationThatSpreadsColumnsOverBanks) {
  constexpr int kRows = 24;
  constexpr int kChunks = 16;  // two panels of eight chunks
  std::set<uint32> offsets;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) offsets.insert(swizzled_offset(kRows, row, chunk));
  }
  EXPECT_EQ(offsets.size(), kRows * kChunks);
  EXPECT_EQ(*offsets.rbegin(), (kRows * kChunks - 1) * 16);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    std::set<uint32> banks;
    for (int row = 8; row < 16; ++row) banks.insert(swizzled_offset(kRows, row, chunk) % kSwizzleBytes);
    EXPECT_EQ(banks.size(), 8);
  }
}

template <MaskKind kKind>
struct TileConfig {
  static constexpr MaskKind kMask = kKind;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 48;
};

// Checks the visited tiles against the definition of the mask. Every tile in which some row sees a key must be visited.
// A tile must count as masked if some row does not see all of its keys.
template <class Config>
void check_tiles(int64 seqlen_q, int64 seqlen_k) {
  ForwardArgs args = {};
  args.seqlen_q = seqlen_q;
  args.seqlen_k = seqlen_k;
  args.batch = 2;
  args.num_heads_q = 4;
  args.num_heads_k = 2;
  const auto blocks = static_cast<uint32>(num_tiles(seqlen_q, Config::kBlockM) * args.batch * args.num_heads_q);
  std::set<std::array<int64, 3>> places;
  for (uint32 block = 0; block < blocks; ++block) {
    const RowTile tile = RowTile::of_block<Config>(args, block);
    places.insert({tile.batch, tile.head, tile.row_begin});
    EXPECT_EQ(tile.head_k, tile.head / 2);
    int64 most = 0;
    int64 least = seqlen_k;
    for (int64 row = tile.row_begin; row < std::min(seqlen_q, tile.row_begin + Config::kBlockM); ++row) {
      const int64 causal = std::clamp<int64>(row + seqlen_k - seqlen_q + 1, 0, seqlen_k);
      const int64 keys = Config::kMask == MaskKind::kCausal ? causal : seqlen_k;
      EXPECT_EQ(tile.key_end(row), keys);
      most = std::max(most, keys);
      least = std::min(least, keys);
    }
    EXPECT_EQ(tile.key_tiles, num_tiles(most, Config::kBlockN));
    EXPECT_EQ(tile.unmasked_tiles, least / Config::kBlockN);
  }
  EXPECT_EQ(places.size(), blocks);
}

TEST(RowTile, VisitsWhatItsRowsSee) {
  for (const int64 seqlen_q : {1, 63, 64, 65, 200}) {
    for (const int64 seqlen_k : {0, 1, 47, 48, 49, 300}) {
      check_tiles<TileConfig<MaskKind::kFull>>(seqlen_q, seqlen_k);
      check_tiles<TileConfig<MaskKind::kCausal>>(seqlen_q, seqlen_k);
    }
  }
}

// Expects that every tile is visited once, sections follow each other, and tiles in a section are ordered from long to
// short. A section is a group of heads whose keys stay in the L2 cache.
void check_longest_first(uint32 tiles, uint32 batch, uint32 heads, int64 bytes_per_head) {
  const uint32 section = section_heads(batch * heads, bytes_per_head);
  std::set<std::array<int64, 3>> places;
  uint32 current = 0;
  int64 longest = tiles;
  for (uint32 block = 0; block < tiles * batch * heads; ++block) {
    const HeadTile at = longest_first(block, tiles, batch, heads, bytes_per_head);
    ASSERT_LT(at.batch, batch);
    ASSERT_LT(at.head, heads);
    ASSERT_TRUE(at.tile >= 0 && at.tile < tiles);
    places.insert({at.batch, at.head, at.tile});
    const uint32 its_section = (at.batch * heads + at.head) / section;
    if (its_section != current) longest = tiles;
    EXPECT_GE(its_section, current);
    EXPECT_LE(at.tile, longest);
    current = its_section;
    longest = at.tile;
  }
  EXPECT_EQ(places.size(), tiles * batch * heads);
}

TEST(CausalOrder, TakesEveryTileOnceAndLongOnesFirst) {
  for (const uint32 tiles : {1U, 5U, 32U}) {
    for (const uint32 heads : {1U, 3U, 16U, 17U}) {
      for (const int64 bytes : {int64{0}, int64{1} << 20, kSectionBytes / 8, kSectionBytes / 20, int64{1} << 40}) {
        check_longest_first(tiles, 1, heads, bytes);
        check_longest_first(tiles, 3, heads, bytes);
      }
    }
  }
}

TEST(CausalOrder, SectionsAreAlike) {
  EXPECT_EQ(section_heads(32, kSectionBytes), 16U);       // k and v of one head fill the cache
  EXPECT_EQ(section_heads(17, kSectionBytes), 9U);        // two sections of 9 and 8 heads, not of 16 and 1
  EXPECT_EQ(section_heads(64, kSectionBytes / 32), 32U);  // the number of heads that fit in the cache
  EXPECT_EQ(section_heads(8, kSectionBytes / 32), 8U);
}

}  // namespace
}  // namespace attend::test
