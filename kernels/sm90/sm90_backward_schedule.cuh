// The order of work in the sm90 backward pass: which key block adds to dq when, how many heads run side by side, and
// how many blocks the kernels have. Host and device. docs/hopper_backward.md has the measurements.
#pragma once

#include "../attention/work.cuh"
#include "../common/portable.cuh"
#include "sm90_backward_layout.cuh"

namespace attend {

// The order in which the key blocks of a sequence add to a tile of dq, if additions have an order. It is the order of
// the list. Blocks take the next item of the list, or every n-th one, in list order. The first unfinished key block
// never waits, so the schedule cannot deadlock.
//
// The order goes from the last key block down. Under a causal mask the last ones are the short ones, and a key block
// starts with tiles that the blocks before it have already left. In a long list (is_persistent, more than kFew key
// blocks a sequence) this holds for the last half of the keys only. The other key blocks follow from the first one up:
// the longest come first, so that the launch does not end with the longest. Each starts with tiles on the diagonal that
// no other block adds to, and when it reaches the rows of the last half, those are done.
struct Sm90BackwardOrder {
  int blocks;   // of the sequence
  int upwards;  // key blocks with a lower number come last, from the first one up

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90BackwardOrder of(int blocks, bool is_persistent) {
    constexpr int kFew = 16;
    return {blocks, !is_persistent || blocks <= kFew ? 0 : blocks - blocks / 2};
  }
  // The key block at this place of the order.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_at(int place) const {
    return place < blocks - upwards ? blocks - 1 - place : place - (blocks - upwards);
  }
  // A tile of rows sees key blocks `first` to `last`. How many of them come before `block`?
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int before(int block, int first, int last) const {
    if (block >= upwards) return last - block;
    const int first_of_last_half = first > upwards ? first : upwards;
    return (last < first_of_last_half ? 0 : last - first_of_last_half + 1) + block - first;
  }
};

// Heads of k (if kAddsUp, query heads) whose key blocks share the GPU, longest first. If all key blocks are alike,
// heads follow one another: 1.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_section(int64 seqlen_q, bool is_full,
                                                                        bool is_deterministic, bool is_persistent) {
  if (is_full) return 1;
  // With more heads side by side a key block waits less for the one before it, but fewer of them fit the L2 cache.
  if (is_deterministic) return is_persistent ? 32 : 4;
  // All blocks of a head are at the same query head of its group. The rows that they read and add to should be about
  // 64 MB in all. Measured at (2, 16, 8192, 128), causal; more than 32 heads bring nothing.
  constexpr int64 kRows = 65536, kMostHeads = 32;
  const int64 heads = kRows / (seqlen_q < 1 ? 1 : seqlen_q);
  return static_cast<uint32>(heads < 1 ? 1 : heads > kMostHeads ? kMostHeads : heads);
}

// Heads side by side if additions to dq have an order and all key blocks are alike: as many as the GPU has blocks for.
// A key block then follows its predecessor at the same distance in each head, and waits for it once. A persistent block
// keeps its place in the order by itself: sm90_backward_blocks().
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_full_section(const Sm90BackwardTile& tile,
                                                                             int64 key_blocks, int64 multiprocessors) {
  if (tile.is_persistent || key_blocks < 1 || key_blocks > multiprocessors) return 1;
  return static_cast<uint32>(multiprocessors / key_blocks);
}

// Blocks of sm90_backward_prepare and sm90_backward_finish. num_sequences: the batch, or packed sequences; lengths of
// packed sequences are upper bounds.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                          int64 num_sequences) {
  const int64 blocks = num_tiles(seqlen_q, kBackwardRows) * num_heads_q * num_sequences;
  return blocks < 1 ? 1 : blocks;  // sm90_backward_prepare also resets counters
}

// Key blocks of the launch. num_heads: of k, or if kAddsUp of q.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_items(const Sm90BackwardTile& tile, int64 seqlen_k,
                                                                     int64 num_heads, int64 num_sequences) {
  return num_tiles(seqlen_k, tile.block_n) * num_heads * num_sequences;
}

// Blocks of sm90_backward_wide_queries.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_wide_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                               int64 num_sequences) {
  return num_tiles(seqlen_q, kBackwardWideRows) * num_heads_q * num_sequences;
}

// Blocks of the kernel that makes dk and dv. key_blocks: of a sequence. keeps_place: additions to dq have an order and
// all key blocks are alike. A persistent block then keeps its place in that order, so that it waits for others once,
// and not with each key block.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_blocks(const Sm90BackwardTile& tile, int64 items,
                                                                      int64 key_blocks, int64 multiprocessors,
                                                                      bool keeps_place) {
  if (!tile.is_persistent || items <= multiprocessors) return items;
  if (!keeps_place || key_blocks > multiprocessors) return multiprocessors;
  return multiprocessors / key_blocks * key_blocks;
}

}  // namespace attend
