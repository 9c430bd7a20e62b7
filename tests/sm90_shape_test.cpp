// The host's half of sm90_forward: grids that cover the problem. Tiles are tested where they are chosen:
// family_test.cpp.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace attend::test
