// What a decode kernel knows of a sequence, and of one item of its work: a key head with a tile of query rows.
//
// Rows are packed: row r of a tile is query row r / group of head r % group of the key head's group, counted from the
// sequence's first. So keys are read once for all of them.
#pragma once

#include "../attention/key_range.cuh"
#include "cache.cuh"
#include "decode_shape.cuh"

namespace attend {

// The unit that has a key.
[[nodiscard]] __device__ __forceinline__ int unit_of(int64 key) {
  return static_cast<int>(static_cast<uint64>(key) / kStepKeys);
}

struct DecodeSpan {
  int64 index;  // of the sequence
  int64 cache_row;
  int64 batch;    // of q, o and lse
  int64 q_begin;  // its first row there
  int64 seqlen_q;
  int64 seqlen_k;   // of a dead sequence 0
  int64 first_key;  // keys before it are not seen
  int begin_key;    // the keys [begin_key, end_key) are those that its rows may see
  int end_key;
  int begin_unit;  // the units that its rows may see; one that has no key if they see none
  int end_unit;
  int tiles;  // of rows
  int items;  // 0: no rows
  bool dead;

  [[nodiscard]] __device__ __forceinline__ int units() const { return end_unit - begin_unit; }
  [[nodiscard]] __device__ __forceinline__ WindowMask window(const DecodeArgs& args) const {
    return {seqlen_q, seqlen_k, args.window_left, args.window_right};
  }
  // Keys that at least one of the query rows [begin, end) may see.
  [[nodiscard]] __device__ __forceinline__ KeyRange keys_of_rows(const DecodeArgs& args, int64 begin, int64 end) const {
    const KeyRange keys = window(args).rows(begin, end);
    const int64 first = keys.begin > first_key ? keys.begin : first_key;
    return {first, keys.end > first ? keys.end : first};
  }

  // A tile has 2^row_shift packed rows.
  [[nodiscard]] static __device__ __forceinline__ DecodeSpan of(const DecodeArgs& args, int64 s, int row_shift) {
    DecodeSpan span = {};
    span.index = span.batch = s;
    span.seqlen_q = args.max_seqlen_q;
    if (args.cu_seqlens_q != nullptr) {
      span.batch = 0;
      span.q_begin = args.cu_seqlens_q[s];
      span.seqlen_q = args.cu_seqlens_q[s + 1] - span.q_begin;
    }
    const CachedSequence in_cache = cached(args.cache, s);
    span.cache_row = in_cache.cache_row;
    span.seqlen_k = in_cache.length;
    span.dead = in_cache.dead;
    span.first_key = attend::first_key(args.cache, s);
    if (span.seqlen_q <= 0) return span;
    const KeyRange keys = span.keys_of_rows(args, 0, span.seqlen_q);
    span.begin_key = static_cast<int>(keys.begin);
    span.end_key = static_cast<int>(keys.end);
    if (!keys.empty()) {
      span.begin_unit = unit_of(keys.begin);
      span.end_unit = unit_of(keys.end + kStepKeys - 1);
    } else {
      span.end_unit = 1;
    }
    span.tiles = static_cast<int>((span.seqlen_q * args.group + (1 << row_shift) - 1) >> row_shift);
    span.items = span.tiles * static_cast<int>(args.num_heads_k);
    return span;
  }
};

}  // namespace attend
