// The order in which the keys of a sequence are split and merged. The order depends only on key positions. So a result
// has the same bits in any batch, and for any distribution of the work over blocks.
//
// Keys are grouped in units of 64 keys. A leaf is a run of units over which the softmax is computed online. Leaves are
// nodes of a binary tree over the units. The node at level n that begins at b, a multiple of 2^n, has the units [b, b +
// 2^n). Leaves at the start of a sequence are small, because short sequences are spread over many blocks. Such a leaf
// is about as long as the smallest share of work that is worthwhile for a block (decode_schedule.cuh). If nodes are
// large, leaves are 2^shift times as long. The tree is then built over runs of 2^shift units instead of units.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kMostLeafUnits = 8;

// Returns the level of the leaf that contains `unit`. The first leaf of each level begins at a multiple of the leaf
// length of the next level.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_level(int unit, int shift) {
  const int run = unit >> shift;
  return (run < 4 ? 0 : run < 16 ? 1 : run < 64 ? 2 : 3) + shift;
}

// Returns the first unit behind the leaf that contains `unit`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_end(int unit, int shift) {
  const int level = leaf_level(unit, shift);
  return ((unit >> level) + 1) << level;
}

// Returns the level of the largest node that begins at `begin` and does not reach beyond `end`. If is_last is set, no
// keys follow, so the node may reach beyond `end`. begin < end, and `begin` and `end` must be boundaries of leaves.
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
