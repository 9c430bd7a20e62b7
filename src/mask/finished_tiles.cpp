#include "mask/finished_tiles.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "mask/block_band.hpp"

namespace attend::mask {
namespace {

using core::BlockTiles;
using core::kMaskTile;
using core::SeenTiles;
using core::TilePattern;

void number_by_first_use(BlockTiles& tiles) {
  constexpr std::int32_t kUnused = -1;
  std::vector<std::int32_t> numbers(tiles.patterns.size(), kUnused);
  std::vector<TilePattern> patterns;
  patterns.reserve(tiles.patterns.size());
  for (SeenTiles& some : tiles.seen) {
    if (some.pattern < 0) continue;
    const auto former = static_cast<std::size_t>(some.pattern);
    if (numbers[former] == kUnused) {
      numbers[former] = static_cast<std::int32_t>(patterns.size());
      patterns.push_back(tiles.patterns[former]);
    }
    some.pattern = numbers[former];
  }
  tiles.patterns = std::move(patterns);
}

/// Returns the number of visible pairs. A number above 2^53 is rounded. The rounding depends on the order of the
/// additions in this function.
double num_pairs(const BlockTiles& tiles) {
  std::vector<std::int64_t> of_patterns;
  for (const TilePattern& pattern : tiles.patterns) {
    std::int64_t pairs = 0;
    for (const std::uint64_t word : pattern) pairs += std::popcount(word);
    of_patterns.push_back(pairs);
  }
  const auto length = [](std::int64_t begin, std::int64_t end, std::int64_t all) {
    return std::min(end * kMaskTile, all) - begin * kMaskTile;
  };
  double sum = 0;
  for (std::size_t row = 0; row + 1 < tiles.row_begin.size(); ++row) {
    const auto tile_row = static_cast<std::int64_t>(row) % tiles.tile_rows();
    const std::int64_t rows = length(tile_row, tile_row + 1, tiles.seqlen_q);
    for (std::int64_t n = tiles.row_begin[row]; n < tiles.row_begin[row + 1]; ++n) {
      const SeenTiles& some = tiles.seen[static_cast<std::size_t>(n)];
      sum += static_cast<double>(some.pattern < 0 ? rows * length(some.begin, some.end, tiles.seqlen_k)
                                                  : of_patterns[static_cast<std::size_t>(some.pattern)]);
    }
  }
  return sum;
}

}  // namespace

void finish(BlockTiles& tiles) {
  number_by_first_use(tiles);
  for (const TilePattern& pattern : tiles.patterns) {
    tiles.rows_seen.push_back(std::accumulate(pattern.begin(), pattern.end(), std::uint64_t{0}, std::bit_or<>()));
  }
  tiles.num_pairs = num_pairs(tiles);
  tiles.band = band_of(tiles);
}

}  // namespace attend::mask
