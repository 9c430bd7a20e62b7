// Tile sizes of the `cpu` backend, and rounding of sizes to vectors and tiles.
#pragma once

#include <cstdint>

namespace attend::cpu {

/// Number of query rows in a panel. Score tiles are stored transposed, as (key, query row), so each SIMD lane holds one
/// row. The loop over keys computes a row's maximum and sum without any reduction across a vector.
constexpr int kPanel = 64;

/// Number of keys in a tile. 64 columns of their values take 32 KiB and stay in the first-level cache.
constexpr int kBlockN = 128;

/// Number of query rows in a forward task. They form four panels, which share each tile of K and V, so a tile is
/// fetched (and converted) once for all four.
constexpr int kForwardBlockM = 4 * kPanel;

/// Number of query rows in a backward tile.
constexpr int kBackwardBlockM = 2 * kPanel;

/// Distance in floats between rows of a backward score tile. It includes 64 bytes of padding. Without the padding, the
/// elements of a column would map to few cache sets.
constexpr int kBackwardScoreStride = kBackwardBlockM + 16;

/// Number of keys in a backward task if several threads share a head. The keys form four key tiles, and the task
/// converts each query row once for all four.
constexpr std::int64_t kBackwardKeysPerTask = 4 * kBlockN;

/// Number of tiles that are summed in float before the sum is added to a float64 total (long_sum-inl.hpp).
constexpr std::int64_t kTilesPerSum = 64;

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
  return (n + d - 1) / d;
}

/// Returns `cols` rounded up to full vectors of every target. A float copy of a row is filled with zeros up to that
/// column.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t cols) {
  return round_up(cols, 16);
}

}  // namespace attend::cpu
