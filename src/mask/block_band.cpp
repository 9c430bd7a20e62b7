#include "mask/block_band.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace attend::mask {
namespace {

using core::BlockBand;
using core::BlockTiles;
using core::kAllSeen;
using core::kMaskTile;
using core::SeenTiles;
using core::TilePattern;

/// Compares the tiles of a mask with the tiles of a band. A band is a mask in which row i sees keys i - left to i +
/// right.
class BandTiles {
 public:
  BandTiles(const BlockTiles& tiles, const BlockBand& band)
      : tiles_(tiles), band_(band), known_(tiles.patterns.size(), kUnknown) {}

  /// Returns whether a row of tiles equals the same row of tiles of the band.
  [[nodiscard]] bool is_row(std::int64_t tile_row, std::span<const SeenTiles> row) {
    const std::int64_t first_row = tile_row * kMaskTile;
    const std::int64_t last_row = std::min(first_row + kMaskTile, tiles_.seqlen_q) - 1;
    const std::int64_t first_key = std::max<std::int64_t>(0, first_row - band_.left);
    const std::int64_t last_key = std::min(last_row + band_.right, tiles_.seqlen_k - 1);
    if (first_key > last_key) return row.empty();
    std::int64_t next = first_key / kMaskTile;  // the key tile with which the next run of visible tiles must begin
    for (const SeenTiles& some : row) {
      if (some.begin != next || !is_run(first_row, last_row, some)) return false;
      next = some.end;
    }
    return next == last_key / kMaskTile + 1;
  }

 private:
  /// Returns whether a run of tiles equals the same tiles of the band. For a run of full tiles, it is enough to check
  /// both ends, because in a band all keys between two visible keys are visible.
  [[nodiscard]] bool is_run(std::int64_t first_row, std::int64_t last_row, const SeenTiles& some) {
    if (some.pattern != kAllSeen) return is_pattern(first_row, some.begin * kMaskTile, some.pattern);
    const std::int64_t last_key = std::min(some.end * kMaskTile, tiles_.seqlen_k) - 1;
    return sees(first_row, last_key) && sees(last_row, some.begin * kMaskTile);
  }
  /// Returns whether a tile's pattern equals the pattern that the band has in this tile. Complete tiles at the same
  /// distance from the diagonal have equal patterns in a band, so a pattern is checked only once for each distance.
  [[nodiscard]] bool is_pattern(std::int64_t first_row, std::int64_t first_key, std::int32_t number) {
    const bool is_whole = first_row + kMaskTile <= tiles_.seqlen_q && first_key + kMaskTile <= tiles_.seqlen_k;
    std::int64_t& known = known_[static_cast<std::size_t>(number)];
    if (is_whole && known == first_key - first_row) return true;
    const TilePattern& pattern = tiles_.patterns[static_cast<std::size_t>(number)];
    for (std::int64_t k = 0; k < kMaskTile; ++k) {
      if (pattern[static_cast<std::size_t>(k)] != rows_that_see(first_row, first_key + k)) return false;
    }
    if (is_whole) known = first_key - first_row;
    return true;
  }
  /// Returns a word in which bit r is 1 if row r of the tile sees the key.
  [[nodiscard]] std::uint64_t rows_that_see(std::int64_t first_row, std::int64_t key) const {
    if (key >= tiles_.seqlen_k) return 0;
    const std::int64_t first = std::max(first_row, key - band_.right);
    const std::int64_t end = std::min({first_row + kMaskTile, tiles_.seqlen_q, key + band_.left + 1});
    if (first >= end) return 0;
    return ~std::uint64_t{0} >> (kMaskTile - (end - first)) << (first - first_row);
  }
  [[nodiscard]] bool sees(std::int64_t row, std::int64_t key) const {
    return key >= row - band_.left && key <= row + band_.right;
  }

  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  const BlockTiles& tiles_;
  BlockBand band_;
  // For each pattern, the distance from the diagonal, counted to the right, at which the pattern has been checked.
  std::vector<std::int64_t> known_;
};

/// The first and the last key that a row sees. The range is empty if last < first.
struct Keys {
  std::int64_t first = 0, last = -1;
};

Keys keys_of(const BlockTiles& tiles, const core::HeadTiles& head, std::int64_t row) {
  Keys keys;
  const auto see = [&keys](std::int64_t first, std::int64_t last) {
    if (keys.last < 0) keys.first = first;
    keys.last = last;
  };
  for (const SeenTiles& some : head.row(row / kMaskTile)) {
    const std::int64_t first = some.begin * kMaskTile;
    if (some.pattern == kAllSeen) {
      see(first, std::min(some.end * kMaskTile, tiles.seqlen_k) - 1);
      continue;
    }
    const TilePattern& pattern = head.pattern(some.pattern);
    for (std::int64_t k = 0; k < kMaskTile; ++k) {
      if ((pattern[static_cast<std::size_t>(k)] >> (row % kMaskTile) & 1) != 0) see(first + k, first + k);
    }
  }
  return keys;
}

/// Returns the narrowest band that contains the visible pairs of the first and the last row of each tile.
BlockBand narrowest(const BlockTiles& tiles) {
  const core::HeadTiles head(&tiles, 0, 0);
  BlockBand band = {-tiles.seqlen_k, -tiles.seqlen_q};  // a band that contains no pair
  for (std::int64_t first = 0; first < tiles.seqlen_q; first += kMaskTile) {
    for (const std::int64_t row : {first, std::min(first + kMaskTile, tiles.seqlen_q) - 1}) {
      const Keys keys = keys_of(tiles, head, row);
      if (keys.last < 0) continue;
      band.left = std::max(band.left, row - keys.first);
      band.right = std::max(band.right, keys.last - row);
    }
  }
  return band;
}

}  // namespace

std::optional<BlockBand> band_of(const BlockTiles& tiles) {
  if (tiles.seqlen_q == 0 || tiles.seqlen_k == 0) return std::nullopt;
  BlockBand band = narrowest(tiles);
  BandTiles of_band(tiles, band);
  for (std::int64_t sequence = 0; sequence < tiles.batch; ++sequence) {
    for (std::int64_t n = 0; n < tiles.num_heads; ++n) {
      const core::HeadTiles head(&tiles, sequence, n);
      for (std::int64_t row = 0; row < tiles.tile_rows(); ++row) {
        if (!of_band.is_row(row, head.row(row))) return std::nullopt;
      }
    }
  }
  // If one side of the band hides no key, that side is open.
  if (band.left >= tiles.seqlen_q - 1) band.left = BlockBand::kOpen;
  if (band.right >= tiles.seqlen_k - 1) band.right = BlockBand::kOpen;
  return band;
}

}  // namespace attend::mask
