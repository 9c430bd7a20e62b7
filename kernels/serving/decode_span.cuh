// A sequence as a decode kernel handles it. An item of its work is a tile of query rows for one key head.
//
// Rows are packed. Packed row r of a sequence and key head is query row r / group, for head r % group of the query
// heads that share the key head. So each key is read once for all these heads.
#pragma once

#include "../attention/key_range.cuh"
#include "decode_sequence.cuh"
#include "decode_tree.cuh"

namespace attend {

// unit_of() returns the unit that contains a key. units_to() returns the number of units that the first `keys` keys
// fill.
[[nodiscard]] __device__ __forceinline__ int unit_of(int key) {
  return static_cast<int>(static_cast<uint32>(key) / kStepKeys);
}
[[nodiscard]] __device__ __forceinline__ int units_to(int keys) {
  return static_cast<int>((static_cast<uint32>(keys) + kStepKeys - 1) / kStepKeys);
}

struct DecodeSpan {
  int index;  // index of the sequence
  int cache_row;
  int batch;    // batch entry of q, o and lse
  int q_begin;  // first row of the sequence in this batch entry
  int seqlen_q;
  int seqlen_k;   // 0 if the sequence is dead
  int first_key;  // first key after the left padding; keys before it are hidden
  int begin_key;  // the rows see only keys in [begin_key, end_key)
  int end_key;
  int begin_unit;  // units [begin_unit, end_unit) that the rows may see. If the rows see no key, the range is one empty
                   // unit
  int end_unit;
  int tiles;  // number of row tiles for each key head
  int items;  // number of items. 0 if there are no rows, or more than DecodeArgs::most_rows
  // Size of an item's range in the numbering of the work (decode_schedule.cuh). The size is the item's number of units,
  // rounded up to a complete last leaf. So for every length, boundaries at multiples of a share fall between items, and
  // few blocks have parts of two items.
  int numbers;
  bool dead;

  [[nodiscard]] __device__ __forceinline__ int units() const { return end_unit - begin_unit; }
  [[nodiscard]] __device__ __forceinline__ WindowMask window(const DecodeArgs& args) const {
    return {seqlen_q, seqlen_k, args.window_left, args.window_right};
  }
  // Returns the range of keys that at least one of the query rows [begin, end) may see.
  [[nodiscard]] __device__ __forceinline__ KeyRange keys_of_rows(const DecodeArgs& args, int64 begin, int64 end) const {
    const KeyRange keys = window(args).rows(begin, end);
    const int64 first = keys.begin > first_key ? keys.begin : first_key;
    return {first, keys.end > first ? keys.end : first};
  }

  // Returns the span of a sequence. A tile has 2^row_shift packed rows. See decode_tree.cuh for leaf_shift.
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
    // The last row sees the last key, because masks are aligned at the bottom right. The first row sees the leftmost
    // key
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
