// Order of work in the sm90 backward pass: the order in which key blocks add to dq, the number of heads that run at the
// same time, and the grid sizes of the kernels. Shared by host and device. docs/hopper_backward.md has the
// measurements.
#pragma once

#include "../attention/work.cuh"
#include "../common/portable.cuh"
#include "sm90_backward_layout.cuh"

namespace attend {

// Order in which the key blocks of a sequence add to a query tile of dq, if additions have a fixed order. The list of
// work items has the same order. Thread blocks take the next or every n-th item, in list order. The first unfinished
// key block never waits, so the schedule cannot deadlock.
//
// The order starts at the last key block and goes down. Under a causal mask the last key blocks have the fewest steps,
// and each key block starts with query tiles that earlier key blocks in the order have already processed. For long
// lists the order is different. A list is long if is_persistent is set and the sequence has more than kFew key blocks.
// Then only the last half of the keys has the descending order, and the other key blocks follow in ascending order.
// Thus the longest key blocks are not the last ones to start. Each key block of the first half starts with tiles on the
// diagonal, to which no other block adds. When it reaches the query rows of the last half, the key blocks of that half
// are complete.
struct Sm90BackwardOrder {
  int blocks;   // number of key blocks of the sequence
  int upwards;  // key blocks with an index below this number come last, in ascending order

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90BackwardOrder of(int blocks, bool is_persistent) {
    constexpr int kFew = 16;
    return {blocks, !is_persistent || blocks <= kFew ? 0 : blocks - blocks / 2};
  }
  // Returns the key block at position `place` of the order.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_at(int place) const {
    return place < blocks - upwards ? blocks - 1 - place : place - (blocks - upwards);
  }
  // Returns the number of key blocks that precede `block` in the order, among the key blocks `first` to `last` that a
  // query tile sees.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int before(int block, int first, int last) const {
    if (block >= upwards) return last - block;
    const int first_of_last_half = first > upwards ? first : upwards;
    return (last < first_of_last_half ? 0 : last - first_of_last_half + 1) + block - first;
  }
};

// Returns the number of heads in a section. Within a section the longest key blocks of all heads come first. The heads
// are KV heads, or query heads if kAddsUp is set. Returns 1 if all key blocks have the same number of steps, so that
// heads follow one another.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_section(int64 seqlen_q, bool is_full,
                                                                        bool is_deterministic, bool is_persistent) {
  if (is_full) return 1;
  // With more heads in a section a key block waits less for its predecessor, but fewer of the heads fit into the L2
  // cache.
  if (is_deterministic) return is_persistent ? 32 : 4;
  // All key blocks of a KV head process the same query head of the group at the same time. The query rows that they
  // read and add to should take about 64 MB in total. This value was measured for the shape (2, 16, 8192, 128) with a
  // causal mask, where more than 32 heads gave no gain.
  constexpr int64 kRows = 65536, kMostHeads = 32;
  const int64 heads = kRows / (seqlen_q < 1 ? 1 : seqlen_q);
  return static_cast<uint32>(heads < 1 ? 1 : heads > kMostHeads ? kMostHeads : heads);
}

// Returns the number of heads in a section if additions to dq have a fixed order and all key blocks have the same
// number of steps. It is the number of heads whose key blocks fit on the GPU at the same time. Each key block then
// follows its predecessor at a constant distance in each head, so it waits only once. Persistent thread blocks keep
// their order without sections (sm90_backward_blocks()).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_full_section(const Sm90BackwardTile& tile,
                                                                             int64 key_blocks, int64 multiprocessors) {
  if (tile.is_persistent || key_blocks < 1 || key_blocks > multiprocessors) return 1;
  return static_cast<uint32>(multiprocessors / key_blocks);
}

// Returns the grid size of sm90_backward_prepare and sm90_backward_finish. num_sequences is the batch size or the
// number of packed sequences. For packed sequences seqlen_q is an upper bound.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                          int64 num_sequences) {
  const int64 blocks = num_tiles(seqlen_q, kBackwardRows) * num_heads_q * num_sequences;
  return blocks < 1 ? 1 : blocks;  // sm90_backward_prepare also resets counters, so it needs at least one block
}

// Returns the number of key blocks of the launch. num_heads is the number of KV heads, or of query heads if kAddsUp is
// set.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_items(const Sm90BackwardTile& tile, int64 seqlen_k,
                                                                     int64 num_heads, int64 num_sequences) {
  return num_tiles(seqlen_k, tile.block_n) * num_heads * num_sequences;
}

// Returns the grid size of sm90_backward_wide_queries.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_wide_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                               int64 num_sequences) {
  return num_tiles(seqlen_q, kBackwardWideRows) * num_heads_q * num_sequences;
}

// Returns the grid size of the kernel that computes dk and dv. key_blocks is the number of key blocks of a sequence.
// keeps_place is set if additions to dq have a fixed order and all key blocks have the same number of steps. The grid
// size is then a multiple of key_blocks, so that a persistent thread block keeps its place in that order. It waits for
// other blocks only once, instead of once per key block.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_blocks(const Sm90BackwardTile& tile, int64 items,
                                                                      int64 key_blocks, int64 multiprocessors,
                                                                      bool keeps_place) {
  if (!tile.is_persistent || items <= multiprocessors) return items;
  if (!keeps_place || key_blocks > multiprocessors) return multiprocessors;
  return multiprocessors / key_blocks * key_blocks;
}

}  // namespace attend
