// The scores of a tile that the lengths and the window leave visible.
#pragma once

#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "key_range.cuh"

namespace attend {

// The part of a key tile that the rows of a tile see. Rows and keys are counted from the first row and key of the tile.
struct TileView {
  int diagonal;   // i + off - j of the tile's first row i and first key j, with off = seqlen_k - seqlen_q
  int rows_left;  // number of rows from the tile's first row to the end of the sequence
  int keys_left;
  int first_seen;  // a row sees the keys with first_seen <= key - row < end_seen
  int end_seen;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr TileView of(const WindowMask& window, int64 first_row,
                                                                int64 first_key) {
    const int64 diagonal = first_row + window.seqlen_k - window.seqlen_q - first_key;
    return {static_cast<int>(diagonal), clamped_to_tile(window.seqlen_q - first_row),
            clamped_to_tile(window.seqlen_k - first_key),
            clamped_to_tile(window.window_left < 0 ? -kFar : diagonal - window.window_left),
            clamped_to_tile(window.window_right < 0 ? kFar : diagonal + window.window_right + 1)};
  }

  // Returns whether every row of the tile sees every key of the tile, according to lengths and window.
  template <int kRowsOfTile, int kKeysOfTile>
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool all_visible() const {
    return rows_left >= kRowsOfTile && keys_left >= kKeysOfTile && first_seen <= 1 - kRowsOfTile &&
           end_seen >= kKeysOfTile;
  }

  // Returns whether a row sees the key that lies `distance` keys behind it in the tile, according to the window.
  template <MaskKind kMask>
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr bool in_window(int distance) const {
    return (kMask == MaskKind::kFull || distance < end_seen) && (kMask != MaskKind::kWindow || distance >= first_seen);
  }
};

}  // namespace attend
