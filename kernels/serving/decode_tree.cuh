// The order in which the keys of a sequence are split and merged. It depends only on key positions. So a result has the
// same bits in any batch, and for any distribution of the work over blocks.
//
// Positions count units of 64 keys. A leaf is a run of units whose softmax is computed online. Leaves are nodes of a
// binary tree over positions: the node at level n that begins at a multiple b of 2^n has the units [b, b + 2^n). Leaves
// of short sequences are small, because they are spread over many blocks. Their length is about the least share that
// pays for a block (decode_schedule.cuh). If nodes are large, leaves are 2^shift times as long: runs of 2^shift units
// take the place of units.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kMostLeafUnits = 8;

// Returns the level of the leaf that has a unit. Leaves of a level begin at a multiple of the next level's length.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_level(int unit, int shift) {
  const int run = unit >> shift;
  return (run < 4 ? 0 : run < 16 ? 1 : run < 64 ? 2 : 3) + shift;
}

// Returns the first unit after the leaf that has `unit`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_end(int unit, int shift) {
  const int level = leaf_level(unit, shift);
  return ((unit >> level) + 1) << level;
}

// Returns the level of the largest node that begins at `begin` and does not reach beyond `end`. With is_last, the last
// node of a sequence may reach beyond, because no keys follow. begin < end, and both lie between leaves.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int node_level(int begin, int end, bool is_last, int shift) {
  int level = leaf_level(begin, shift);
  while (level < 30 && (begin >> level & 1) == 0) {
    const bool covers_all = begin + (1LL << level) >= end;
    if (covers_all || (!is_last && begin + (2LL << level) > end)) break;
    ++level;
  }
  return level;
}

}  // namespace attend
