// Tile sizes of the `cpu` backend, and all assumptions of the tile code about them.
#pragma once

#include <cstdint>

namespace attend::cpu {

/// Query rows of a panel, one per SIMD lane. Score tiles are stored transposed, as (key, query row). A row's maximum
/// and sum therefore run down the lanes, without any reduction across a vector.
constexpr int kPanel = 64;

/// Keys of a tile: 64 columns of their values (32 KiB) stay in the first-level cache.
constexpr int kBlockN = 128;

/// Query rows of a forward task: a tile of K and V is fetched (and converted) once and read by four panels.
constexpr int kForwardBlockM = 4 * kPanel;

/// Query rows of a backward tile.
constexpr int kBackwardBlockM = 2 * kPanel;

/// Floats between rows of a backward score tile, with 64 bytes of padding. Without padding, the elements of a column
/// would share few cache sets.
constexpr int kBackwardScoreStride = kBackwardBlockM + 16;

/// Keys of a backward task if threads share a head: query rows are converted once for four tiles.
constexpr std::int64_t kBackwardKeysPerTask = 4 * kBlockN;

/// Tiles that are summed in float before the sum is added to a float64 total (long_sum-inl.hpp).
constexpr std::int64_t kTilesPerSum = 64;

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
  return (n + d - 1) / d;
}

/// Returns the columns of a float copy of a row of `cols` elements: full vectors of every target, zero-filled.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t cols) {
  return round_up(cols, 16);
}

}  // namespace attend::cpu
