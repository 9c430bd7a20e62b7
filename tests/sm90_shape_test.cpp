// Tests host code of sm90_forward and sm90_backward: grids that cover the problem, positions of float32 operands split
// into parts, and the order of additions in sm90_backward. family_test.cpp tests the choice of tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/sm90/sm90_backward_schedule.cuh"
#include "kernels/sm90/sm90_f32_shape.cuh"
#include "kernels/sm90/sm90_forward_args.cuh"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::test {
namespace {

TEST(Sm90ForwardGrid, CoversEveryRowOnce) {
  for (const int64 seqlen_q : {1, 127, 128, 129, 16384}) {
    const Sm90ForwardGrid grid = Sm90ForwardGrid::of(3, 10, 5, seqlen_q, 8192, 512, 128, 132);
    EXPECT_EQ(grid.row_tiles, (seqlen_q + 127) / 128);
    EXPECT_EQ(grid.total_tiles, grid.row_tiles * 30);
    EXPECT_LE(grid.blocks, 132u);
    EXPECT_GE(grid.section_heads, 1u);
    EXPECT_LE(grid.section_heads, 30u);
  }
}

TEST(Sm90ForwardGrid, IsEmptyWithoutRows) {
  EXPECT_EQ(Sm90ForwardGrid::of(3, 10, 5, 0, 8192, 512, 128, 132).blocks, 0u);
  EXPECT_EQ(Sm90ForwardGrid::of(0, 10, 5, 100, 8192, 512, 128, 132).blocks, 0u);
}

TEST(Sm90BackwardOrder, HasEveryKeyBlockOnce) {
  for (int blocks = 1; blocks < 80; ++blocks) {
    const auto order = Sm90BackwardOrder::of(blocks, blocks % 2 == 1);
    std::vector<int> found;
    for (int place = 0; place < blocks; ++place) found.push_back(order.block_at(place));
    std::sort(found.begin(), found.end());
    for (int block = 0; block < blocks; ++block) EXPECT_EQ(found[static_cast<std::size_t>(block)], block);
  }
}

TEST(F32PieceRows, OfPackedSequencesDoNotOverlap) {
  for (const int block : {64, 96}) {
    for (int pattern = 0; pattern < 200; ++pattern) {
      std::vector<int64> lengths;
      int64 total = 0, longest = 0;
      for (int i = 0; i < 9; ++i) {
        lengths.push_back(pattern * 37 * (i + 1) % (i % 2 == 0 ? 250 : 3));
        total += lengths.back();
        longest = std::max(longest, lengths.back());
      }
      const F32PieceRows rows = F32PieceRows::of(total, longest, true, 9, block);
      EXPECT_EQ(rows.rows % block, 0);
      int64 begin = 0, end_before = 0;
      for (uint32 i = 0; i < 9; ++i) {
        const int64 first = F32PieceRows::first(begin, i, block);
        EXPECT_EQ(first % block, 0);
        EXPECT_GE(first, end_before) << pattern << " " << i;
        end_before = first + num_tiles(lengths[i], block) * block;
        EXPECT_LE(num_tiles(lengths[i], block), rows.blocks);
        begin += lengths[i];
      }
      EXPECT_LE(end_before, rows.rows) << pattern;
    }
  }
}

TEST(F32PieceRows, OfDenseTensorsAreWholeBlocks) {
  const F32PieceRows rows = F32PieceRows::of(130, 130, false, 7, 64);
  EXPECT_EQ(rows.rows, 192);
  EXPECT_EQ(rows.blocks, 3);
}

// The order of additions must be the order in which blocks start. Otherwise a block could wait for a later one, which
// cannot start until a running block ends.
TEST(Sm90BackwardOrder, IsThatOfTheListWhateverATileSees) {
  for (int blocks = 1; blocks < 24; ++blocks) {
    const auto order = Sm90BackwardOrder::of(blocks, blocks > 9);
    for (int first = 0; first < blocks; ++first) {
      for (int last = first; last < blocks; ++last) {
        int turn = 0;
        for (int place = 0; place < blocks; ++place) {
          const int block = order.block_at(place);
          if (block < first || block > last) continue;
          EXPECT_EQ(order.before(block, first, last), turn++) << blocks << ": " << first << " to " << last;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
