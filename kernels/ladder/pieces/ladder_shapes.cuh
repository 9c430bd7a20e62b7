// Sizes of the shared memory of the rungs' blocks, in bytes. The host requests this memory
// (src/cuda/launch/rungs_*.cpp), and each kernel asserts that its storage has this size. Rung 08 has a separate header.
#pragma once

#include "../../common/portable.cuh"
#include "../../common/tile_sizes.cuh"

namespace attend {

// Rung 01: the tiles of a and b of a ProductTile.
struct ProductTileShape {
  static constexpr int kSize = 64;        // number of rows, and of columns, of C
  static constexpr int kDepth = 16;       // number of steps of the summed dimension that are in shared memory at a time
  static constexpr int kThreads = 256;    // a grid of 16 x 16 threads
  static constexpr int kRow = kSize + 2;  // the padding of 2 avoids bank conflicts for both functions that fill a tile
  static constexpr int kSmemBytes = float_bytes(2 * kDepth, kRow);
};

// Rungs 03 and 04 (WarpRowStorage): a row of q for each warp, k and v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int warp_row_bytes(int warps, int keys, int head_dim, int head_dim_v) {
  constexpr int kLanes = 32;
  return float_bytes(warps, head_dim) + float_bytes(keys, odd_stride(head_dim) + round_up(head_dim_v, kLanes));
}

constexpr int kGridColumns = 16;  // number of columns of the thread grid (ThreadGrid)

// Rungs 05 to 07 (ScoreRowsStorage, RowTileStorage): q, k, v, s or p, and a few floats for each row.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int score_tile_bytes(int rows, int keys, int head_dim, int head_dim_v,
                                                                int floats_of_row) {
  return float_bytes(rows + keys, odd_stride(head_dim)) + float_bytes(keys, round_up(head_dim_v, kGridColumns)) +
         float_bytes(rows, odd_stride(keys) + floats_of_row);
}

// Returns the size of a 16-bit tile of q, and of `stages` 16-bit tiles of k and of v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int qkv_bytes(int rows, int keys, int stages, int head_dim) {
  return half_bytes(rows + 2 * stages * keys, head_dim);
}

// Rung 09 (WarpStorage): q, k, v, s, p and o.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int warp_wmma_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys) + half_bytes(rows, keys) +
         float_bytes(rows, head_dim);
}

// Rung 10 (BlockStorage): q, k, v, s and o. p overwrites s.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_wmma_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys) + float_bytes(rows, head_dim);
}

// Rung 11 (RowBlockStorage): q, k, v and s. p overwrites s.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int wmma_row_block_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys);
}

// Rung 14 (MmaStorage): two stages of k and v. q and o share this memory. Rungs 12, 13 and 16 use qkv_bytes().
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int mma_qreg_bytes(int keys, int head_dim) {
  return qkv_bytes(0, keys, 2, head_dim);
}

constexpr int kTileAlignment = 1024;  // alignment of swizzled tiles in bytes. It is also the alignment of a storage
                                      // with other data behind the tiles

// Bytes of shared memory of rung 15 (AsyncStorage) and of rungs 17 and 18 (TmaStorage): the tiles of q, k and v, then a
// BlockWork or barriers, which take at most kTileAlignment bytes.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int staged_bytes(int rows, int keys, int stages, int head_dim) {
  return qkv_bytes(rows, keys, stages, head_dim) + kTileAlignment;
}

}  // namespace attend
