// The geometry of the `cpu` backend's tiles. Everything the tile code assumes about sizes is here.
#pragma once

#include <cstdint>

namespace attend::cpu {

/// Query rows side by side in one panel: the SIMD direction of every score tile. Scores are kept transposed, as
/// (key, query row), so that a row's maximum and sum run down the lanes and nothing is ever reduced across a vector.
constexpr int kPanel = 64;

/// Keys of one tile: 64 columns of their values (32 KiB) stay in the first-level cache.
constexpr int kBlockN = 128;

/// Query rows of one forward task: a tile of K and V is fetched (and converted) once, then read by four panels.
constexpr int kForwardBlockM = 4 * kPanel;

/// Query rows of one backward tile.
constexpr int kBackwardBlockM = 2 * kPanel;

/// Floats between the rows of a backward score tile: 64 bytes of padding, or columns of it would share few cache sets.
constexpr int kBackwardScoreStride = kBackwardBlockM + 16;

/// Keys of one backward task where a head is split between threads: query rows are converted once for four tiles.
constexpr std::int64_t kBackwardKeysPerTask = 4 * kBlockN;

/// Tiles that are added up in float before the sum goes on to float64 (long_sum-inl.hpp).
constexpr std::int64_t kTilesPerSum = 64;

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
  return (n + d - 1) / d;
}

/// Columns of a float copy of a row of `cols` elements: whole vectors of every target, zero-filled.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t cols) {
  return round_up(cols, 16);
}

}  // namespace attend::cpu
