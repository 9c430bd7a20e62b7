// The host's half of sm90_forward: tiles that fit into a multiprocessor, grids that cover the problem.
#include <gtest/gtest.h>

#include "kernels/sm90/sm90_forward_args.cuh"
#include "kernels/sm90/sm90_forward_shape.cuh"

namespace attend::test {
namespace {

constexpr int kSharedMemory = 232448;  // bytes that a block may have
constexpr int kRegisters = 65536;      // of a multiprocessor

template <class Check>
void for_each_choice(const Check& check) {
  for (int head_dim = 8; head_dim <= kSm90LargestHeadDim; head_dim += 8) {
    for (const int head_dim_v : {8, 64, 72, 128, 136, 192, 256}) {
      for (const MaskKind mask : {MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow}) {
        for (int options = 0; options < 128; ++options) {
          const auto has = [&](int bit) { return (options >> bit & 1) != 0; };
          for (const int64 seqlen_k : {512, 8192}) {
            check(Sm90ForwardTraits{head_dim, head_dim_v, mask, has(0), has(1), has(2), has(3), has(4), has(5), has(6),
                                    seqlen_k});
          }
        }
      }
    }
  }
}

TEST(Sm90ForwardTile, FitsIntoSharedMemory) {
  for_each_choice([](const Sm90ForwardTraits& of) {
    const Sm90ForwardTile tile = sm90_forward_tile(of);
    ASSERT_LE(
        sm90_forward_smem_bytes(tile.consumers, tile.block_n, tile.stages, tile.q_buffers, of.head_dim, of.head_dim_v),
        kSharedMemory)
        << "head_dim " << of.head_dim << ", " << of.head_dim_v << ", " << tile.block_m() << " x " << tile.block_n;
  });
}

// A consumer that took more registers than the producer gave would wait for ever.
TEST(Sm90ForwardTile, RegistersAddUp) {
  for_each_choice([](const Sm90ForwardTraits& of) {
    const Sm90ForwardTile tile = sm90_forward_tile(of);
    const int of_a_thread = kRegisters / tile.threads() / 8 * 8;
    ASSERT_LE(tile.producer_registers + tile.consumers * tile.consumer_registers, (1 + tile.consumers) * of_a_thread);
    ASSERT_EQ(tile.producer_registers % 8, 0);
    ASSERT_EQ(tile.consumer_registers % 8, 0);
  });
}

// Boxes of the copy engine have at most 256 rows, products a width that wgmma_widths.cuh or wgmma.cuh has.
TEST(Sm90ForwardTile, HasWidthsThatThereAre) {
  for_each_choice([](const Sm90ForwardTraits& of) {
    const Sm90ForwardTile tile = sm90_forward_tile(of);
    ASSERT_LE(tile.block_m(), 256);
    ASSERT_TRUE(tile.block_n == 64 || tile.block_n == 80 || tile.block_n == 96 || tile.block_n == 112 ||
                tile.block_n == 128)
        << tile.block_n;
  });
}

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
