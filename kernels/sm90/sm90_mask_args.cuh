// Parameter struct of the kernels that turn a boolean mask into tile lists: sm90_mask_tiles.cuh and
// sm90_mask_lists.cuh.
#pragma once

#include "../common/args.cuh"

namespace attend {

constexpr int kMaskTilesOfBlock = 8;  // adjacent tiles of 64 keys that one block of sm90_mask_tiles processes, one per
                                      // warp
// Number of lists that one block of sm90_mask_lists writes, one per warp. Also the number of tile rows that one block
// of sm90_mask_turns processes, one per warp.
constexpr int kMaskListsOfBlock = 4;

// Describes which 64 x 64 tiles of the mask one element of a list covers.
struct MaskListShape {
  int by_keys;  // If 1, there is one list per block of keys, and its elements are tiles of 64 query rows. If 0, there
                // is one list per tile of query rows
  int rows;     // tiles of 64 query rows that a list covers; 1 if by_keys is set
  int keys;     // tiles of 64 keys that an element covers. If by_keys is set, tiles of 64 keys that a list covers
  int heads;    // heads of the mask that share a list; 1 if by_keys is 0

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tiles() const { return heads * rows * keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int entry_words() const { return 1 + tiles() + by_keys; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 lists(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? (tile_columns + keys - 1) / keys : (tile_rows + rows - 1) / rows;
  }
  // Returns the maximum number of elements of a list, which is also the capacity reserved for it.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 elements(int64 tile_rows, int64 tile_columns) const {
    return by_keys != 0 ? tile_rows : (tile_columns + keys - 1) / keys;
  }
};
static_assert(sizeof(MaskListShape) == 16);

// A mask consists of `heads` matrices of shape (seqlen_q, seqlen_k), where heads = sequences * num_heads. There is one
// matrix for each sequence and query head, or fewer if the mask is broadcast.
struct Sm90MaskArgs {
  static constexpr const char* kTypeName = "Sm90MaskArgs";
  const unsigned char* mask;  // (sequences, num_heads, seqlen_q, seqlen_k), one byte per pair; 0 hides the pair
  uint32* patterns;           // kPatternWords words for each tile; written only if the tile has both visible and hidden
                              // pairs
  uint32* patterns_by_key;    // the same patterns for accumulators whose rows are keys; either pointer may be null
  int* kinds;                 // (heads, mask_rows, tile_columns): the number of the tile's pattern, kAllSeen or
                              // kNoneSeen
  int* turns;                 // (heads / shape.heads, tile_rows, lists): number of key blocks that add to a tile of dq
                              // before the key block of a list; null if additions have no fixed order
  int64* bounds;              // bounds and entries of the lists, as in BlockMaskArgs
  int* entries;
  TensorStrides mask_stride;  // strides in bytes; 0 in broadcast dimensions
  int64 seqlen_q;
  int64 seqlen_k;
  int64 window_left;    // left bound of the window that the attention kernel applies itself; kOpenWindow if there is
                        // none
  int64 window_right;   // right bound of that window, or kOpenWindow
  BlockMaskArgs other;  // a second mask in 64 x 64 tiles. A pair is visible only if both masks show it. There is no
                        // second mask if its bounds are null
  MaskListShape shape;
  uint32 sequences;   // size of the mask's first dimension
  uint32 num_heads;   // size of the mask's second dimension: heads per sequence
  int mask_rows;      // number of tile rows that are stored: 1 if all rows of the mask are the same
  int is_persistent;  // 1 if the kernel that reads lists by keys is persistent, which decides the order of its
                      // additions to dq

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_rows() const { return static_cast<int>((seqlen_q + 63) / 64); }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int tile_columns() const { return static_cast<int>((seqlen_k + 63) / 64); }
};
static_assert(sizeof(Sm90MaskArgs) == 7 * 8 + 24 + 4 * 8 + sizeof(BlockMaskArgs) + sizeof(MaskListShape) + 4 * 4);

}  // namespace attend
