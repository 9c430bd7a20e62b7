// Decomposition of a decode call on a CPU.
//
// A tile is up to kTileRows query rows that read one key head: all heads of the group of row 0, then all of row 1, and
// so on. Its keys are cut into leaves of kLeaf keys, counted from key 0. The results of leaves are merged along a
// binary tree over leaf numbers: a leaf with its neighbour, then pairs with pairs, and so on. Tree and leaves depend
// only on the positions of keys, so a row's bits do not depend on the distribution of leaves over threads.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cpu/scratch.hpp"
#include "cpu/tiles.hpp"

namespace attend::cpu {

constexpr std::int64_t kLeaf = 256;
constexpr int kTileRows = 32;
constexpr int kLeavesAtOnce = 4;  // leaves that a thread reads at the same time, if their rows lie in memory
constexpr int kMostLevels = 32;   // levels of the tree: no sequence has more than 2^31 keys

struct DecodeTile {
  core::DecodeSequence sequence;
  std::int64_t key_head;
  std::int64_t row_begin;  ///< first packed row of the tile
  int rows;
  bool prefetches = true;  ///< true if its keys and values lie in memory, not in a processor cache

  [[nodiscard]] std::int64_t head(const core::DecodeProblem& p, int r) const {
    return key_head * p.heads_per_group() + (row_begin + r) % p.heads_per_group();
  }
  [[nodiscard]] std::int64_t row(const core::DecodeProblem& p, int r) const {
    return (row_begin + r) / p.heads_per_group();
  }

  /// Returns the keys that some row of the tile may see.
  [[nodiscard]] KeyRange keys(const core::DecodeProblem& p) const {
    const KeyRange first = p.keys_of_row(sequence, row(p, 0));
    const KeyRange last = p.keys_of_row(sequence, row(p, rows - 1));
    return {first.begin, last.end > first.begin ? last.end : first.begin};
  }
};

/// Range of leaf numbers, [begin, end).
struct LeafRange {
  std::int64_t begin, end;

  [[nodiscard]] static LeafRange of(const KeyRange& keys) {
    return {keys.begin / kLeaf, keys.empty() ? keys.begin / kLeaf : ceil_div(keys.end, kLeaf)};
  }
};

/// Returns the columns of a row of o in memory, in floats.
[[nodiscard]] constexpr std::int64_t state_columns(std::int64_t head_dim_v) {
  return round_up(head_dim_v, 32);  // two vectors of the widest target
}

/// Returns the floats of a tile's partial result; see State.
[[nodiscard]] constexpr std::int64_t state_floats(std::int64_t head_dim_v) {
  return kTileRows * (state_columns(head_dim_v) + 2);
}

/// Computes the tile over `leaves`, which are all leaves of the tile below `node` of the tree. Writes o and lse if
/// `partial` is null; otherwise writes state_floats() floats to `partial`.
void decode_leaves(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves, const LeafRange& node,
                   float* partial, Scratch& scratch);

/// Merges a tile's results over nodes of `leaves_per_part` leaves each, a power of two, and writes o and lse. `parts`
/// has state_floats() floats for each node, starting with the node of the first leaf.
void merge_parts(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                 std::int64_t leaves_per_part, const float* parts, Scratch& scratch);

}  // namespace attend::cpu
