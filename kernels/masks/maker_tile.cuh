// Rows and keys of a tile of a block mask.
#pragma once

#include "mask_args.cuh"

namespace attend {

struct MakerTile {
  int batch, head;
  int row, key;            // first row and first key of the tile
  int num_rows, num_keys;  // numbers of existing rows and keys, at least 1 and at most 64

  [[nodiscard]] static __device__ __forceinline__ MakerTile of(const MaskMakerArgs& args, int tile) {
    const int row = tile / args.tile_columns, column = tile % args.tile_columns;  // `row` is numbered across all heads
    const int of_head = row / args.tile_rows;
    MakerTile at = {};
    at.batch = of_head / args.num_heads;
    at.head = of_head % args.num_heads;
    at.row = row % args.tile_rows * kMakerTile;
    at.key = column * kMakerTile;
    const int64 rows = args.seqlen_q - at.row, keys = args.seqlen_k - at.key;
    at.num_rows = rows < kMakerTile ? static_cast<int>(rows) : kMakerTile;
    at.num_keys = keys < kMakerTile ? static_cast<int>(keys) : kMakerTile;
    return at;
  }
};

}  // namespace attend
