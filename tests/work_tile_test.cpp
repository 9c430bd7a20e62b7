// Tests the positions of keys (kernels/attention/key_source.cuh), and the range of keys that a tile processes
// (work_tile.cuh).
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

#include "kernels/attention/key_source.cuh"
#include "kernels/attention/sequence.cuh"
#include "kernels/attention/work_tile.cuh"

namespace attend {
namespace {

constexpr TensorStrides kStride = {.batch = int64{3} << 33, .head = int64{5} << 31, .row = 7};

TEST(KeySource, DensePackedAndPagedGiveTheSameRow) {
  constexpr int kPage = 16;
  constexpr int64 kLength = 100;
  const KeySource dense = {.batch = 2, .begin = 0, .length = kLength};
  const KeySource packed = {.batch = 0, .begin = 1'000'000'000, .length = kLength};
  std::vector<int> pages(static_cast<std::size_t>(num_tiles(kLength, kPage)));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int>(900 - 7 * i);
  const PagedKeySource paged = {pages.data(), kPage, kLength};
  for (int64 key = 0; key < kLength; ++key) {
    EXPECT_EQ(dense.offset(kStride, 3, key), 2 * kStride.batch + 3 * kStride.head + key * kStride.row);
    EXPECT_EQ(packed.offset(kStride, 3, key), 3 * kStride.head + (1'000'000'000 + key) * kStride.row);
    const int64 page = pages[static_cast<std::size_t>(key / kPage)];
    EXPECT_EQ(paged.offset(kStride, 3, key), page * kStride.batch + 3 * kStride.head + key % kPage * kStride.row);
    EXPECT_EQ(dense.run(key), kLength - key);
    EXPECT_EQ(paged.run(key), std::min(kPage - key % kPage, kLength - key));
    EXPECT_EQ(paged.place(key).batch, page);
    EXPECT_EQ(packed.place(key).row, 1'000'000'000 + key);
  }
}

TEST(KeySource, NeverReadsTheTableBeyondTheLastKey) {
  const std::vector<int> pages = {4};  // reading a second entry would be out of bounds
  const PagedKeySource paged = {pages.data(), 8, 8};
  EXPECT_EQ(paged.place(7).row, 7);
  EXPECT_EQ(paged.run(7), 1);
}

void check_splits(KeyRange keys, uint32 splits, int block_n) {
  int64 at = keys.begin, fewest = keys.end + 1, most = 0;
  for (uint32 split = 0; split < splits; ++split) {
    const KeyRange part = keys_of_split(keys, split, splits, block_n);
    if (part.empty()) {
      fewest = 0;
      continue;
    }
    EXPECT_EQ(part.begin, at);
    EXPECT_TRUE(split == 0 || part.begin == keys.begin || part.begin % block_n == 0);
    const int64 tiles = num_tiles(part.end, block_n) - part.begin / block_n;
    fewest = std::min(fewest, tiles);
    most = std::max(most, tiles);
    at = part.end;
  }
  EXPECT_EQ(at, keys.empty() ? keys.begin : keys.end);
  EXPECT_LE(most - std::min(fewest, most), 1);
}

TEST(WorkTile, SplitsCoverAllKeysOnceAndEvenly) {
  for (const int64 begin : {0, 1, 63, 64, 500}) {
    for (const int64 length : {0, 1, 64, 65, 1000, 131072}) {
      for (const uint32 splits : {1U, 2U, 7U, 128U}) {
        for (const int block_n : {16, 64, 176}) check_splits({begin, begin + length}, splits, block_n);
      }
    }
  }
}

TEST(WorkTile, PackedRowsOfAGroupAreEachTakenOnce) {
  constexpr uint32 kHeads = 12, kGroup = 4, kSplits = 3;
  constexpr int kBlockM = 16;
  for (const int64 seqlen_q : {1, 4, 5, 37}) {
    const auto row_tiles = static_cast<uint32>(num_tiles(seqlen_q * kGroup, kBlockM));
    std::set<std::array<int64, 4>> seen;  // entries are (sequence, head, row, split)
    for (uint32 block = 0; block < 2 * kHeads / kGroup * row_tiles * kSplits; ++block) {
      const WorkTile tile = split_by_split(block, row_tiles, kHeads, kGroup, kSplits, kBlockM);
      EXPECT_TRUE(tile.is_partial());
      for (int64 packed = 0; packed < kBlockM; ++packed) {
        if (tile.row_of(packed) >= seqlen_q) continue;
        EXPECT_EQ(tile.head_of(packed) / kGroup, tile.head / kGroup);  // all rows of a tile belong to the same key head
        EXPECT_TRUE(seen.insert({tile.sequence, tile.head_of(packed), tile.row_of(packed), tile.split}).second);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * kHeads * seqlen_q * kSplits));
  }
}

}  // namespace
}  // namespace attend
