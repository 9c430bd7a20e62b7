// The parameters of the kernels that make lists of a boolean mask: sm90_mask_tiles.cuh, sm90_mask_lists.cuh.
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMaskTilesOfBlock = 8;  // of 64 keys, side by side, of a block of sm90_mask_tiles: a warp each
constexpr int kMaskListsOfBlock = 4;  // of sm90_mask_lists, and rows of tiles of sm90_mask_turns: a warp each

// Which tiles of 64 x 64 an element of a list stands for.
struct MaskListShape {
  int by_keys;  // 1: lists of blocks of keys, whose elements are tiles of 64 rows; 0: of tiles of rows, by keys
  int rows;     // tiles of 64 rows of a list; by_keys: 1
  int keys;     // tiles of 64 keys of an element; by_keys: of a list
  int heads;    // of the mask, that share a list; 1 if not by_keys

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tiles() const { return heads * rows * keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int entry_words() const { return 1 + tiles() + by_keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 lists(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? (tile_columns + keys - 1) / keys : (tile_rows + rows - 1) / rows;
  }
  // The most entries that a list may have. It has room for as many.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 elements(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? tile_rows : (tile_columns + keys - 1) / keys;
  }
};
static_assert(sizeof(MaskListShape) == 16);

// A mask has `heads` matrices of (seqlen_q, seqlen_k): of each sequence and query head, or fewer if it is broadcast.
struct Sm90MaskArgs {
  static constexpr const char* kTypeName = "Sm90MaskArgs";
  const unsigned char* mask;  // (sequences, num_heads, seqlen_q, seqlen_k); 0 hides
  uint32* patterns;           // of each tile, kPatternWords; written if some scores of the tile are seen, not all
  uint32* patterns_by_key;    // the same for accumulators whose rows are keys. Either may be null
  int* kinds;                 // (heads, mask_rows, tile_columns): the tile's number, kAllSeen or kNoneSeen
  int* turns;                 // (heads / shape.heads, tile_rows, lists); null: additions have no order
  int64* bounds;              // BlockMaskArgs
  int* entries;
  TensorStrides mask_stride;  // bytes; 0: the same for all
  int64 seqlen_q;
  int64 seqlen_k;
  int64 window_left;  // what the kernel that reads the lists hides anyhow, kOpenWindow: nothing
  int64 window_right;
  BlockMaskArgs other;  // of 64 x 64: a pair is seen if this sees it too; bounds: null: there is none
  MaskListShape shape;
  uint32 sequences;   // of the mask
  uint32 num_heads;   // of the mask, of a sequence
  int mask_rows;      // rows of tiles that differ: 1 if all rows of the mask are the same
  int is_persistent;  // of the kernel that reads lists by keys, for the order of additions

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_rows() const { return static_cast<int>((seqlen_q + 63) / 64); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_columns() const { return static_cast<int>((seqlen_k + 63) / 64); }
};
static_assert(sizeof(Sm90MaskArgs) == 7 * 8 + 24 + 4 * 8 + sizeof(BlockMaskArgs) + sizeof(MaskListShape) + 4 * 4);

}  // namespace attend
