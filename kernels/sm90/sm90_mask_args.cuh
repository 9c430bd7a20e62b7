// Parameter of the kernels that make lists of a boolean mask: sm90_mask_tiles.cuh and sm90_mask_lists.cuh.
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMaskTilesOfBlock = 8;  // adjacent tiles of 64 keys of a sm90_mask_tiles block: one per warp
// Lists of a block of sm90_mask_lists, and rows of tiles of a block of sm90_mask_turns: one per warp.
constexpr int kMaskListsOfBlock = 4;

// Tiles of 64 x 64 pairs that an element of a list covers.
struct MaskListShape {
  int by_keys;  // 1: a list per block of keys, whose elements are tiles of 64 rows; 0: a list per tile of rows
  int rows;     // tiles of 64 rows of a list; 1 if by_keys
  int keys;     // tiles of 64 keys of an element, or of a list if by_keys
  int heads;    // heads of the mask that share a list; 1 if not by_keys

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tiles() const { return heads * rows * keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int entry_words() const { return 1 + tiles() + by_keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 lists(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? (tile_columns + keys - 1) / keys : (tile_rows + rows - 1) / rows;
  }
  // Returns the maximum number of entries of a list, which is also its capacity.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 elements(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? tile_rows : (tile_columns + keys - 1) / keys;
  }
};
static_assert(sizeof(MaskListShape) == 16);

// A mask has `heads` matrices of (seqlen_q, seqlen_k): one for each sequence and query head, or fewer if it is
// broadcast.
struct Sm90MaskArgs {
  static constexpr const char* kTypeName = "Sm90MaskArgs";
  const unsigned char* mask;  // (sequences, num_heads, seqlen_q, seqlen_k); 0 hides
  uint32* patterns;           // kPatternWords for each tile; written if some scores of the tile are seen, but not all
  uint32* patterns_by_key;    // the same for accumulators whose rows are keys. Either pointer may be null
  int* kinds;                 // (heads, mask_rows, tile_columns): the tile's number, kAllSeen or kNoneSeen
  int* turns;                 // (heads / shape.heads, tile_rows, lists); null if additions have no order
  int64* bounds;              // BlockMaskArgs
  int* entries;
  TensorStrides mask_stride;  // bytes; 0 means broadcast
  int64 seqlen_q;
  int64 seqlen_k;
  int64 window_left;  // window that the attention kernel applies itself; kOpenWindow: none
  int64 window_right;
  BlockMaskArgs other;  // second mask, in 64 x 64 tiles: a pair must be visible in both; null bounds: none
  MaskListShape shape;
  uint32 sequences;   // of the mask
  uint32 num_heads;   // of the mask, per sequence
  int mask_rows;      // rows of tiles that differ: 1 if all rows of the mask are the same
  int is_persistent;  // whether the kernel that reads lists by keys is persistent; decides the order of additions

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_rows() const { return static_cast<int>((seqlen_q + 63) / 64); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_columns() const { return static_cast<int>((seqlen_k + 63) / 64); }
};
static_assert(sizeof(Sm90MaskArgs) == 7 * 8 + 24 + 4 * 8 + sizeof(BlockMaskArgs) + sizeof(MaskListShape) + 4 * 4);

}  // namespace attend
