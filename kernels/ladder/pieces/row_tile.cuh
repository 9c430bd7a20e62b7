// Work of one block of a forward kernel: kBlockM query rows of one head, and the tiles of kBlockN keys that they see.
#pragma once

#include "../../attention/head_matrix.cuh"
#include "../../attention/key_range.cuh"
#include "../../attention/work.cuh"
#include "../../common/args.cuh"
#include "../../common/config_enums.cuh"

namespace attend {

struct RowTile {
  uint32 batch;
  uint32 head;         // head of q and o
  uint32 head_k;       // head of k and v
  int64 row_begin;     // first query row
  int key_tiles;       // the tiles 0 to key_tiles - 1 have a visible key
  int unmasked_tiles;  // all rows see all keys of the tiles 0 to unmasked_tiles - 1
  WindowMask mask;

  // Returns the end of the keys that the row sees, from 0 to seqlen_k.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int key_end(int64 row) const {
    return static_cast<int>(mask.row(row).end);
  }

  // Returns the block's work in a grid of all row tiles of all query heads (Grid::kRowTiles). Under a causal mask, the
  // last rows of a head have the most keys. They start first, so that no long block starts when all others have ended.
  template <class Config>
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr RowTile of_block(const ForwardArgs& args, uint32 block) {
    constexpr bool kCausal = Config::kMask == MaskKind::kCausal;
    const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
    const HeadTile place = HeadTile::of_block(block, row_tiles, args.num_heads_q);
    const WindowMask mask = mask_of<Config>(args);
    const int64 row_begin = (kCausal ? row_tiles - 1 - place.tile : place.tile) * Config::kBlockM;
    const int64 row_end = row_begin + Config::kBlockM < args.seqlen_q ? row_begin + Config::kBlockM : args.seqlen_q;
    return {place.batch,
            place.head,
            key_head_of(args, place.head),
            row_begin,
            static_cast<int>(num_tiles(mask.rows(row_begin, row_end).end, Config::kBlockN)),
            static_cast<int>(mask.row(row_begin).end / Config::kBlockN),
            mask};
  }
};

}  // namespace attend
