// Lengths and offsets of one sequence, read from the arrays of a call.
//
// A block computes its schedule while the previous kernel still runs. That kernel may write the arrays. So the block
// keeps the values that it read. If they have changed when that kernel has ended, the block computes the schedule
// again.
#pragma once

#include "../common/warp_reduce.cuh"
#include "cache.cuh"
#include "decode_shape.cuh"

namespace attend {

struct DecodeSequence {
  int q_begin, seqlen_q;  // number of query rows, and index of the first of them in packed q
  int cache_row;
  int seqlen_k;   // -1 if the sequence is dead
  int first_key;  // first visible key

  [[nodiscard]] static __device__ __forceinline__ DecodeSequence of(const DecodeArgs& args, int s) {
    DecodeSequence sequence = {0, static_cast<int>(args.max_seqlen_q)};
    if (args.cu_seqlens_q != nullptr) {
      sequence.q_begin = args.cu_seqlens_q[s];
      const int64 rows = static_cast<int64>(args.cu_seqlens_q[s + 1]) - sequence.q_begin;
      sequence.seqlen_q = static_cast<int>(min(max(rows, int64{0}), args.max_seqlen_q));
    }
    const CachedSequence in_cache = cached(args.cache, s);
    sequence.cache_row = static_cast<int>(in_cache.cache_row);
    sequence.seqlen_k = in_cache.dead ? -1 : static_cast<int>(in_cache.length);
    sequence.first_key = static_cast<int>(attend::first_key(args.cache, s));
    return sequence;
  }
  // Returns the kept sequence s. If none are kept, reads the arrays.
  [[nodiscard]] static __device__ __forceinline__ DecodeSequence of(const DecodeArgs& args, int s,
                                                                    const DecodeSequence* kept) {
    return kept != nullptr ? kept[s] : of(args, s);
  }

  [[nodiscard]] __device__ __forceinline__ bool operator==(const DecodeSequence& other) const {
    return q_begin == other.q_begin && seqlen_q == other.seqlen_q && cache_row == other.cache_row &&
           seqlen_k == other.seqlen_k && first_key == other.first_key;
  }
};

// Largest number of sequences that are kept. If there are more, none are kept.
constexpr int kDecodeKept = 128;

// Returns whether the arrays' contents differ from the kept values. One warp calls it.
[[nodiscard]] __device__ __forceinline__ bool have_changed(const DecodeArgs& args, const DecodeSequence* kept,
                                                           int lane) {
  bool changed = false;
#pragma unroll 1
  for (int s = lane; s < static_cast<int>(args.num_sequences); s += kWarpThreads) {
    changed |= !(DecodeSequence::of(args, s) == kept[s]);
  }
  return __any_sync(kAllLanes, changed) != 0;
}

}  // namespace attend
