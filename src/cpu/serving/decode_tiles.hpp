// Tiles and leaves of a decode call on a CPU.
//
// A tile consists of up to kTileRows query rows that read the same key head. The rows are ordered by their number in
// the sequence: all heads of the group for row 0, then all heads for row 1, and so on. The tile's keys are split into
// leaves of kLeaf keys, counted from key 0. A binary tree over leaf numbers defines the order in which results are
// merged: neighbouring leaves form pairs, then neighbouring pairs are merged, and so on. Tree and leaves depend only on
// the positions of keys, so a row's bits do not depend on the distribution of leaves over threads.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cpu/scratch.hpp"
#include "cpu/tiles.hpp"

namespace attend::cpu {

constexpr std::int64_t kLeaf = 256;
constexpr int kTileRows = 32;
// Number of leaves that a thread reads at the same time if their rows are not in a processor cache.
constexpr int kLeavesAtOnce = 4;
// Maximum number of levels of the tree; it is large enough because no sequence has more than 2^31 keys.
constexpr int kMostLevels = 32;

struct DecodeTile {
  core::DecodeSequence sequence;
  std::int64_t key_head;
  /// Number of the tile's first row; the heads of the group are numbered first, then the next row.
  std::int64_t row_begin;
  int rows;
  /// True if the tile's keys and values must be fetched from memory. False if they may be in a processor cache.
  bool prefetches = true;

  [[nodiscard]] std::int64_t head(const core::DecodeProblem& p, int r) const {
    return key_head * p.heads_per_group() + (row_begin + r) % p.heads_per_group();
  }
  [[nodiscard]] std::int64_t row(const core::DecodeProblem& p, int r) const {
    return (row_begin + r) / p.heads_per_group();
  }

  /// Returns a range that contains all keys that any row of the tile may see.
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

/// Returns the padded length of a row of State::o, in floats.
[[nodiscard]] constexpr std::int64_t state_columns(std::int64_t head_dim_v) {
  return round_up(head_dim_v, 32);  // two vectors of the widest target
}

/// Returns the number of floats in a tile's partial result, a State.
[[nodiscard]] constexpr std::int64_t state_floats(std::int64_t head_dim_v) {
  return kTileRows * (state_columns(head_dim_v) + 2);
}

/// Computes the tile over `leaves`, which must be all leaves of the tile below `node` of the tree. If `partial` is
/// null, writes o and lse. Otherwise writes state_floats() floats to `partial`.
void decode_leaves(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves, const LeafRange& node,
                   float* partial, Scratch& scratch);

/// Merges the partial results of a tile and writes o and lse. Each partial result belongs to a tree node with
/// `leaves_per_part` leaves, which is a power of two. `parts` holds state_floats() floats for each node, starting with
/// the node of the first leaf.
void merge_parts(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                 std::int64_t leaves_per_part, const float* parts, Scratch& scratch);

}  // namespace attend::cpu
