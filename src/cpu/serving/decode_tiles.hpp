// The pieces that a decode call is cut into on a CPU.
//
// A tile is up to kTileRows query rows that read one key head: all heads of the group of row 0, all of row 1, and so
// on. Its keys are cut into leaves of kLeaf keys, counted from key 0. The results of leaves are merged on a binary tree
// over their numbers: a leaf and its neighbour, pairs of such pairs, and so on. Tree and leaves follow from the
// positions of keys alone, so that a row's bits depend on nothing else, however many leaves one thread takes.
#pragma once

#include <cstdint>

#include "core/decode_problem.hpp"
#include "cpu/scratch.hpp"
#include "cpu/tiles.hpp"

namespace attend::cpu {

constexpr std::int64_t kLeaf = 256;
constexpr int kTileRows = 32;
constexpr int kLeavesAtOnce = 4;  // that a thread reads at the same time, if their rows lie in memory
constexpr int kMostLevels = 32;   // of the tree: no sequence has more than 2^31 keys

struct DecodeTile {
  core::DecodeSequence sequence;
  std::int64_t key_head;
  std::int64_t row_begin;  ///< the first of its packed rows
  int rows;
  bool prefetches = true;  ///< its keys and values lie in memory rather than in a cache of the processor

  [[nodiscard]] std::int64_t head(const core::DecodeProblem& p, int r) const {
    return key_head * p.heads_per_group() + (row_begin + r) % p.heads_per_group();
  }
  [[nodiscard]] std::int64_t row(const core::DecodeProblem& p, int r) const {
    return (row_begin + r) / p.heads_per_group();
  }

  /// Keys that some row of the tile may see.
  [[nodiscard]] KeyRange keys(const core::DecodeProblem& p) const {
    const KeyRange first = p.keys_of_row(sequence, row(p, 0));
    const KeyRange last = p.keys_of_row(sequence, row(p, rows - 1));
    return {first.begin, last.end > first.begin ? last.end : first.begin};
  }
};

/// Numbers of leaves, [begin, end).
struct LeafRange {
  std::int64_t begin, end;

  [[nodiscard]] static LeafRange of(const KeyRange& keys) {
    return {keys.begin / kLeaf, keys.empty() ? keys.begin / kLeaf : ceil_div(keys.end, kLeaf)};
  }
};

/// Columns of a row of o in memory, in floats.
[[nodiscard]] constexpr std::int64_t state_columns(std::int64_t head_dim_v) {
  return round_up(head_dim_v, 32);  // two vectors of the widest target
}

/// Floats of a tile's result over some keys, see State.
[[nodiscard]] constexpr std::int64_t state_floats(std::int64_t head_dim_v) {
  return kTileRows * (state_columns(head_dim_v) + 2);
}

/// Computes the tile over `leaves`, which are all of the tile's below `node` of the tree. The result goes to o and lse,
/// or if `partial` is not null, there: state_floats() floats.
void decode_leaves(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves, const LeafRange& node,
                   float* partial, Scratch& scratch);

/// Merges a tile's results over nodes of `leaves_per_part` leaves each, a power of two, and writes o and lse. `parts`
/// has state_floats() floats for each node, from the one with the first of `leaves` on.
void merge_parts(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                 std::int64_t leaves_per_part, const float* parts, Scratch& scratch);

}  // namespace attend::cpu
