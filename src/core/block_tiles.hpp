// The contents of a BlockMask in the format that backends read: for each tile of rows and keys, which pairs are
// visible.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/common/args.cuh"

namespace attend::core {

constexpr std::int64_t kMaskTile = 64;  // number of rows, and of keys, in a tile

/// Visible pairs of a tile. If bit r of word k is 1, row r of the tile sees key k of the tile. Bits of rows and keys
/// beyond the sequence are 0.
using TilePattern = std::array<std::uint64_t, kMaskTile>;

// Special values that replace a pattern number. kAllSeen means that each existing row sees each existing key. kNoneSeen
// means that no row sees a key.
using attend::kAllSeen;
using attend::kNoneSeen;

/// A run of neighbouring key tiles in a row of tiles. It consists of any number of fully visible tiles, or of one tile
/// with a pattern.
struct SeenTiles {
  std::int32_t begin, end;  ///< range [begin, end) of key tiles
  std::int32_t pattern;     ///< index into BlockTiles::patterns, or kAllSeen
};

/// A mask that is a window: row i sees keys i - left to i + right. One of the two numbers may be negative.
struct BlockBand {
  static constexpr std::int64_t kOpen = std::int64_t{1} << 40;  ///< value of `left` or `right` that hides no key
  std::int64_t left = kOpen, right = kOpen;
};

struct BlockTiles {
  std::int64_t batch = 1;      ///< 1 if all sequences have the same mask
  std::int64_t num_heads = 1;  ///< 1 if all query heads have the same mask
  /// True if the mask function uses the batch index b or the head index h. In that situation, a 1 in the fields above
  /// does not mean that all sequences or heads share the mask. It means that the call must have exactly one.
  bool asks_for_batch = false, asks_for_head = false;
  std::int64_t seqlen_q = 0, seqlen_k = 0;
  /// For each row of tiles, the index of its first entry in `seen`. The last element is the end of the last row.
  std::vector<std::int64_t> row_begin = {};
  std::vector<SeenTiles> seen = {};        ///< entries of all rows of tiles; within a row they are sorted by key
  std::vector<TilePattern> patterns = {};  ///< all patterns are different, and none is empty or full
  /// For each pattern, a word whose bit r is 1 if row r sees any key of the tile.
  std::vector<std::uint64_t> rows_seen = {};
  double num_pairs = 0;                ///< number of visible pairs
  std::optional<BlockBand> band = {};  ///< set if the mask equals this window
  /// Copies in GPU memory that are freed with this object. See cuda/launch/block_mask_lists.cpp.
  mutable std::shared_ptr<void> on_devices = {};
  mutable std::shared_ptr<void> maps_on_devices = {};  ///< copies that cuda/launch/block_map.cpp makes

  [[nodiscard]] std::int64_t tile_rows() const { return (seqlen_q + kMaskTile - 1) / kMaskTile; }
  [[nodiscard]] std::int64_t tile_columns() const { return (seqlen_k + kMaskTile - 1) / kMaskTile; }
};

/// The tiles of one query head of one sequence. If there is no mask, all pairs are visible.
class HeadTiles {
 public:
  HeadTiles() = default;
  HeadTiles(const BlockTiles* tiles, std::int64_t sequence, std::int64_t head) : tiles_(tiles) {
    if (tiles == nullptr) return;
    const std::int64_t of_batch = tiles->batch == 1 ? 0 : sequence, of_head = tiles->num_heads == 1 ? 0 : head;
    first_ = (of_batch * tiles->num_heads + of_head) * tiles->tile_rows();
  }

  [[nodiscard]] bool see_all() const { return tiles_ == nullptr; }

  /// Returns whether row r of a tile sees any of the tile's keys. `number` is the number of the tile's pattern.
  [[nodiscard]] bool sees_any(std::int32_t number, std::int64_t r) const {
    return (tiles_->rows_seen[static_cast<std::size_t>(number)] >> r & 1) != 0;
  }

  /// Returns the visible tiles in a row of tiles.
  [[nodiscard]] std::span<const SeenTiles> row(std::int64_t tile_row) const {
    const std::int64_t* at = tiles_->row_begin.data() + first_ + tile_row;
    return {tiles_->seen.data() + at[0], static_cast<std::size_t>(at[1] - at[0])};
  }

  /// Returns the pattern number of a tile, or kAllSeen or kNoneSeen.
  [[nodiscard]] std::int32_t pattern_of(std::int64_t tile_row, std::int64_t key_tile) const {
    if (tiles_ == nullptr) return kAllSeen;
    const auto tiles = row(tile_row);
    const auto found = first_behind(tiles, key_tile);
    return found == tiles.end() || found->begin > key_tile ? kNoneSeen : found->pattern;
  }
  [[nodiscard]] const TilePattern& pattern(std::int32_t number) const {
    return tiles_->patterns[static_cast<std::size_t>(number)];
  }

  /// Returns false only if no row of the range sees any key of the range. Neither range may be empty.
  [[nodiscard]] bool may_see(std::int64_t row_begin, std::int64_t row_end, std::int64_t key_begin,
                             std::int64_t key_end) const {
    if (tiles_ == nullptr) return true;
    for (std::int64_t tile_row = row_begin / kMaskTile; tile_row * kMaskTile < row_end; ++tile_row) {
      const auto tiles = row(tile_row);
      const auto found = first_behind(tiles, key_begin / kMaskTile);
      if (found != tiles.end() && found->begin * kMaskTile < key_end) return true;
    }
    return false;
  }

  [[nodiscard]] bool sees(std::int64_t i, std::int64_t j) const {
    const std::int32_t number = pattern_of(i / kMaskTile, j / kMaskTile);
    if (number < 0) return number == kAllSeen;
    return (pattern(number)[static_cast<std::size_t>(j % kMaskTile)] >> (i % kMaskTile) & 1) != 0;
  }

 private:
  /// Returns the first entry whose end is greater than `key_tile`.
  [[nodiscard]] static std::span<const SeenTiles>::iterator first_behind(std::span<const SeenTiles> tiles,
                                                                         std::int64_t key_tile) {
    return std::upper_bound(tiles.begin(), tiles.end(), key_tile,
                            [](std::int64_t wanted, const SeenTiles& one) { return wanted < one.end; });
  }

  const BlockTiles* tiles_ = nullptr;
  std::int64_t first_ = 0;  // first row of tiles of this head
};

}  // namespace attend::core
