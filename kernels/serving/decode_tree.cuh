// How the keys of a sequence are cut and merged: by their position alone, so that a result has the same bits in any
// batch and however the work is spread over blocks.
//
// Positions count units of 64 keys. A leaf is a run of units whose softmax is computed online; leaves are the nodes of
// a binary tree over positions: the node at level n that begins at a multiple b of 2^n has the units [b, b + 2^n).
// Leaves are small where a sequence is short, since there they are spread over many blocks: about as long as the least
// share of a block that pays (decode_schedule.cuh). Where a node is large, they are 2^shift times as long: of runs of
// 2^shift units instead of units.
#pragma once

#include "../common/portable.cuh"

namespace attend {

constexpr int kMostLeafUnits = 8;

// The level of the leaf that has a unit. Leaves of a level begin at a multiple of the next level's length.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_level(int unit, int shift) {
  const int run = unit >> shift;
  return (run < 4 ? 0 : run < 16 ? 1 : run < 64 ? 2 : 3) + shift;
}

// The first unit after the leaf that has `unit`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int leaf_end(int unit, int shift) {
  const int level = leaf_level(unit, shift);
  return ((unit >> level) + 1) << level;
}

// The level of the largest node that begins at `begin` and does not reach beyond `end`; the last node of a sequence
// may, as there are no keys: is_last. begin < end, both between leaves.
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
