// Tile of a block of simt's backward pass: how threads divide it, and its layout in shared memory.
//
// A block owns a tile of keys or of query rows. It owns keys for dk and dv, or for the gradient of the bias, and rows
// for dq. It streams over tiles of the other side. The tensors form pairs. Pair 0 is q and k, and pair 1 is dout and v.
// Each product of a tile multiplies the streamed member of a pair by the transposed owned member. So blocks that own
// keys and blocks that own rows run the same code.
//
// If kPanels is 1, the two owned tiles stay in shared memory, and the streamed tiles in shared memory are also operands
// of the gradients. Otherwise the products process columns panel by panel, and a block computes one of kColumnParts
// parts of the gradients' columns.
#pragma once

#include "../tiles/fp32_product.cuh"
#include "grid_scores.cuh"
#include "simt_shape.cuh"

namespace attend {

template <class Config, SimtGradient kGradient>
struct SimtBackwardShape {
  using Kernel = Config;
  static constexpr SimtGradient kKind = kGradient;
  static constexpr SimtBackwardTile kTile = {.gradient = kGradient,
                                             .head_dim = Config::kHeadDim,
                                             .head_dim_v = Config::kHeadDimV,
                                             .block_m = Config::kBlockM,
                                             .block_n = Config::kBlockN,
                                             .threads = Config::kThreads,
                                             .threads_x = Config::kThreadsX,
                                             .min_blocks = 0,
                                             .resident = Config::kPanels == 1,
                                             .panel = Config::kPanel,
                                             .parts = Config::kColumnParts,
                                             .cols_0 = Config::kCols0,
                                             .cols_1 = Config::kCols1};
  static constexpr bool kOwnsKeys = kTile.owns_keys();
  static constexpr int kOwned = kTile.owned();
  static constexpr int kStreamed = kTile.streamed();
  static constexpr bool kResident = kTile.resident;
  static constexpr int kPanel = Config::kPanel;  // number of columns of each pair in shared memory, if not resident

  // Threads form a grid of kThreadsY x kThreadsX. A warp is 8 threads wide and 4 high. A thread has kRows x kCols
  // scores, where kRows counts along the streamed side and kCols along the owned side. It also has kOwnedRows x kDims
  // elements of each gradient.
  static constexpr int kLanesX = 8;
  static constexpr int kThreadsX = Config::kThreadsX;
  static constexpr int kThreadsY = Config::kThreads / kThreadsX;
  static constexpr int kRows = kStreamed / kThreadsY;
  static constexpr int kCols = kOwned / kThreadsX;
  static constexpr int kOwnedRows = kOwned / kThreadsY;
  static constexpr int kStep = kThreadsX * kChunkBytes;  // bytes from one of a thread's chunks of a row to its next
  static_assert(kRows % 4 == 0 && kCols % 4 == 0 && kOwnedRows % 4 == 0 && kThreadsX % kLanesX == 0);
  using Place = ScorePlace<kOwnsKeys, 4 * kThreadsX>;

  // Numbers of columns for pair 0 and for pair 1. Products sum over kDepths columns. kGradientCols are the columns of
  // the gradients in this block.
  static constexpr int kHeadDims[2] = {Config::kHeadDim, Config::kHeadDimV};
  static constexpr int kDepths[2] = {kTile.depth_0(), kTile.depth_1()};
  static constexpr int kGradientCols[2] = {Config::kCols0, Config::kCols1};
  template <int kPair>
  static constexpr int kDims = kGradientCols[kPair] / kThreadsX;
  static constexpr bool kHasScoreTiles = kTile.has_ds();

  // A thread's share of a tile of scores, and of the gradient of a pair.
  using Scores = float[kRows][kCols];
  template <int kPair>
  using Sums = float[kOwnedRows][kDims<kPair>];

  // Tiles in shared memory, and their offsets in bytes.
  using ScoreTile = Fp32Tile<kStreamed, FlippedRows<kOwned, kRows>>;
  template <int kPair>
  using StreamedTile = Fp32Tile<kStreamed, FlippedRows<kGradientCols[kPair], kRows>>;
  using PanelTile = Fp32Tile<kStreamed, FlippedRows<kPanel, kRows>>;
  // A transposed tile has a row for each column of the tensor.
  using TransposedRows = PaddedRows<kOwned, kTransposedPadding>;
  template <int kPair>
  using TransposedTile = Fp32Tile<kDepths[kPair], TransposedRows>;
  using TransposedPanel = Fp32Tile<kPanel, TransposedRows>;
  static constexpr bool kHasRows[2] = {kTile.has_rows_0(), kTile.has_rows_1()};
  static constexpr int kDs = kTile.ds_begin();
  static constexpr int kP = kTile.p_begin();
  static constexpr int kRows0 = kTile.rows_0_begin();
  static constexpr int kRows1 = kTile.rows_1_begin();
  static constexpr int kPanelRows = kTile.panel_begin();
  static constexpr int kTransposed0 = kTile.transposed_0_begin();
  static constexpr int kTransposed1 = kTile.transposed_1_begin();
  static constexpr int kSaved = kTile.saved_begin();
  static constexpr int kLog2Sums = kTile.log2_sums_begin();
  static_assert(kTile.smem_bytes() == Config::kSmemBytes);
  static_assert(ScoreTile::kRowBytes == float_bytes(1, kOwned) && PanelTile::kRowBytes == float_bytes(1, kPanel) &&
                StreamedTile<0>::kRowBytes == float_bytes(1, Config::kCols0) &&
                StreamedTile<1>::kRowBytes == float_bytes(1, Config::kCols1) &&
                TransposedRows::kRowBytes == float_bytes(1, kOwned + kTransposedPadding));
  static_assert(kRows0 % kBankRowBytes == 0 && kRows1 % kBankRowBytes == 0 &&
                kPanelRows % kBankRowBytes == 0);  // FlippedRows requires this alignment

  template <int kPair>
  static constexpr int kRowsAt = kPair == 0 ? kRows0 : kRows1;
  template <int kPair>
  static constexpr int kTransposedAt = kPair == 0 || !kResident ? kTransposed0 : kTransposed1;
};

// Place of a thread in the grid. Warps fill the grid row by row.
template <class Shape>
struct SimtThread {
  int x;
  int y;

  [[nodiscard]] static __device__ __forceinline__ SimtThread mine() {
    constexpr int kWarpsX = Shape::kThreadsX / Shape::kLanesX;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    return {warp % kWarpsX * Shape::kLanesX + lane % Shape::kLanesX, warp / kWarpsX * 4 + lane / Shape::kLanesX};
  }
  [[nodiscard]] __device__ __forceinline__ typename Shape::Place place() const {
    return {y * Shape::kRows, x * kChunkFloats};
  }
};

}  // namespace attend
