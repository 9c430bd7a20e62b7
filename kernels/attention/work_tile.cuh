// A tile of work that may cover only some of a row's keys, and rows of several query heads.
//
// If there are few query rows and many keys, most of a GPU would be idle, and most rows of a tile would be empty. So
// the keys of a row are split among blocks. Query heads that read the same key head share a tile. Their rows are
// packed: first row 0 of all these heads, then row 1 of all heads, and so on. Each split writes o and lse over its
// keys, and merge_rows.cuh merges the splits.
// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023).
#pragma once

#include "../common/portable.cuh"
#include "key_range.cuh"
#include "work.cuh"

namespace attend {

struct WorkTile {
  uint32 sequence;
  uint32 head;    // the first of the query heads that share the tile
  uint32 heads;   // number of query heads that share the tile and read one key head
  int64 row;      // first packed row of the tile
  uint32 split;   // number of the split of the keys
  uint32 splits;  // number of splits of the keys

  // head_of() returns the query head of a packed row of the tile. row_of() returns the packed row's row of q.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 head_of(int64 packed) const {
    return head + static_cast<uint32>((row + packed) % heads);
  }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 row_of(int64 packed) const { return (row + packed) / heads; }

  // Returns whether the result must be merged with the results of other splits.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool is_partial() const { return splits > 1; }
};

// Returns the keys of split `split` of `splits`. A split consists of complete tiles of block_n keys, counted from key
// 0. Splits differ by at most one tile, and may be empty.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr KeyRange keys_of_split(KeyRange keys, uint32 split, uint32 splits,
                                                                  int block_n) {
  const int64 first = keys.begin / block_n;
  const int64 tiles = keys.empty() ? 0 : num_tiles(keys.end, block_n) - first;
  const int64 begin = (first + tiles * split / splits) * block_n;
  const int64 end = (first + tiles * (split + 1) / splits) * block_n;
  return WindowMask::bounded({begin < keys.begin ? keys.begin : begin, end}, keys.end);
}

// Maps a block to a tile of packed rows. The splits of a tile are neighbours, so that they end at about the same time.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr WorkTile split_by_split(uint32 block, uint32 row_tiles, uint32 num_heads_q,
                                                                   uint32 heads, uint32 splits, int block_m) {
  const HeadTile at = HeadTile::of_block(block / splits, row_tiles, num_heads_q / heads);
  return {at.batch, at.head * heads, heads, at.tile * block_m, block % splits, splits};
}

}  // namespace attend
