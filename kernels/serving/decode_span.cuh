// A sequence as a decode kernel handles it, and an item of its work: a key head with a tile of query rows.
//
// Rows are packed: row r of a sequence and key head is query row r / group of head r % group in the key head's group.
// So each key is read once for all heads of the group.
#pragma once

#include "../attention/key_range.cuh"
#include "decode_sequence.cuh"
#include "decode_tree.cuh"

namespace attend {

// unit_of() returns the unit that has a key, units_to() the number of units that the first `keys` keys fill.
[[nodiscard]] __device__ __forceinline__ int unit_of(int key) {
  return static_cast<int>(static_cast<uint32>(key) / kStepKeys);
}
[[nodiscard]] __device__ __forceinline__ int units_to(int keys) {
  return static_cast<int>((static_cast<uint32>(keys) + kStepKeys - 1) / kStepKeys);
}

struct DecodeSpan {
  int index;  // index of the sequence
  int cache_row;
  int batch;    // entry of q, o and lse
  int q_begin;  // the sequence's first row there
  int seqlen_q;
  int seqlen_k;   // 0 for a dead sequence
  int first_key;  // keys before it are hidden
  int begin_key;  // the rows may see the keys [begin_key, end_key)
  int end_key;
  int begin_unit;  // units that the rows may see; if they see no key, one empty unit
  int end_unit;
  int tiles;  // row tiles
  int items;  // 0 if there are no rows, or more than DecodeArgs::most_rows
  // Numbers of the work of an item: its units, rounded up to a full last leaf. So boundaries at multiples of a share
  // fall between items, and few blocks have parts of two items, for every length.
  int numbers;
  bool dead;

  [[nodiscard]] __device__ __forceinline__ int units() const { return end_unit - begin_unit; }
  [[nodiscard]] __device__ __forceinline__ WindowMask window(const DecodeArgs& args) const {
    return {seqlen_q, seqlen_k, args.window_left, args.window_right};
  }
  // Returns the keys that at least one of the query rows [begin, end) may see.
  [[nodiscard]] __device__ __forceinline__ KeyRange keys_of_rows(const DecodeArgs& args, int64 begin, int64 end) const {
    const KeyRange keys = window(args).rows(begin, end);
    const int64 first = keys.begin > first_key ? keys.begin : first_key;
    return {first, keys.end > first ? keys.end : first};
  }

  // Returns the span of a sequence. A tile has 2^row_shift packed rows. leaf_shift: see decode_tree.cuh.
  [[nodiscard]] static __device__ __forceinline__ DecodeSpan of(const DecodeArgs& args, int s,
                                                                const DecodeSequence& sequence, int row_shift,
                                                                int leaf_shift) {
    DecodeSpan span = {};
    span.index = s;
    span.batch = args.cu_seqlens_q != nullptr ? 0 : s;
    span.q_begin = sequence.q_begin;
    span.seqlen_q = sequence.seqlen_q;
    span.cache_row = sequence.cache_row;
    span.dead = sequence.seqlen_k < 0;
    span.seqlen_k = max(sequence.seqlen_k, 0);
    span.first_key = sequence.first_key;
    if (span.seqlen_q <= 0 || (static_cast<uint32>(span.seqlen_q) > args.most_rows && !span.dead)) return span;
    // The last row sees the last key, because masks align bottom right. The first row sees farthest to the left
    span.begin_key = span.first_key;
    if (args.window_left >= 0) {
      const int64 left = static_cast<int64>(span.seqlen_k) - span.seqlen_q - args.window_left;
      if (left > span.begin_key) span.begin_key = static_cast<int>(left);
    }
    span.end_key = max(span.seqlen_k, span.begin_key);
    if (span.end_key > span.begin_key) {
      span.begin_unit = unit_of(span.begin_key);
      span.end_unit = units_to(span.end_key);
    } else {
      span.end_unit = 1;
    }
    const int64 rows = static_cast<int64>(span.seqlen_q) * args.group;
    span.tiles = static_cast<int>((rows + (1 << row_shift) - 1) >> row_shift);
    span.items = span.tiles * static_cast<int>(args.num_heads_k);
    const int units = max(span.units(), 1), leaf = 1 << leaf_level(units - 1, leaf_shift);
    span.numbers = units < leaf ? units : (units + leaf - 1) & -leaf;
    return span;
  }
};

}  // namespace attend
