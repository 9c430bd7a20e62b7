// Shared memory of the rungs' blocks, in bytes. The host requests it (src/cuda/launch/rungs_*.cpp), and each kernel
// asserts that its storage has this size. Rung 08 has a separate header.
#pragma once

#include "../../common/portable.cuh"
#include "../../common/tile_sizes.cuh"

namespace attend {

// Rung 01: tiles of a and b of ProductTile.
struct ProductTileShape {
  static constexpr int kSize = 64;        // rows and columns of C
  static constexpr int kDepth = 16;       // steps in shared memory at a time
  static constexpr int kThreads = 256;    // 16 x 16
  static constexpr int kRow = kSize + 2;  // the + 2 avoids bank conflicts in both ways to fill a tile
  static constexpr int kSmemBytes = float_bytes(2 * kDepth, kRow);
};

// Rungs 03 and 04: a row of q for each warp, k, v. WarpRowStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int warp_row_bytes(int warps, int keys, int head_dim, int head_dim_v) {
  constexpr int kLanes = 32;
  return float_bytes(warps, head_dim) + float_bytes(keys, odd_stride(head_dim) + round_up(head_dim_v, kLanes));
}

constexpr int kGridColumns = 16;  // columns of the thread grid: ThreadGrid

// Rungs 05 to 07: q, k, v, s or p, and a few floats for each row. ScoreRowsStorage, RowTileStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int score_tile_bytes(int rows, int keys, int head_dim, int head_dim_v,
                                                                int floats_of_row) {
  return float_bytes(rows + keys, odd_stride(head_dim)) + float_bytes(keys, round_up(head_dim_v, kGridColumns)) +
         float_bytes(rows, odd_stride(keys) + floats_of_row);
}

// 16-bit tiles of q and, `stages` times, of k and v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int qkv_bytes(int rows, int keys, int stages, int head_dim) {
  return half_bytes(rows + 2 * stages * keys, head_dim);
}

// Rung 09: q, k, v, s, p, o. WarpStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int warp_wmma_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys) + half_bytes(rows, keys) +
         float_bytes(rows, head_dim);
}

// Rung 10: q, k, v, s overwritten by p, o. BlockStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_wmma_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys) + float_bytes(rows, head_dim);
}

// Rung 11: q, k, v, s overwritten by p. RowBlockStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int wmma_row_block_bytes(int rows, int keys, int head_dim) {
  return qkv_bytes(rows, keys, 1, head_dim) + float_bytes(rows, keys);
}

// Rungs 12, 13 and 16 use qkv_bytes. Rung 14: q and o share the memory of two stages of k and v. MmaStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int mma_qreg_bytes(int keys, int head_dim) {
  return qkv_bytes(0, keys, 2, head_dim);
}

constexpr int kTileAlignment = 1024;  // bytes: alignment of swizzled tiles, and so of storage with other data after the
                                      // tiles

// Rungs 15, 17 and 18: tiles, followed by BlockWork or barriers. AsyncStorage, TmaStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int staged_bytes(int rows, int keys, int stages, int head_dim) {
  return qkv_bytes(rows, keys, stages, head_dim) + kTileAlignment;
}

}  // namespace attend
