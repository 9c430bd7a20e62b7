// Layout of the sm90 backward pass's workspace in global memory: row statistics, sums and counters. Shared by host and
// device.
#pragma once

#include "../attention/work.cuh"
#include "../common/portable.cuh"
#include "sm90_backward_layout.cuh"

namespace attend {

// Turn counters per query tile of dq. There is one for each of the tile's passes, or one for each warp if there is only
// one pass.
constexpr int kBackwardTurns = 4;

// These functions define the padded rows of one head in the statistics and sums. Each sequence has complete tiles of
// rows. The tiles of packed sequence i start at row sm90_backward_first_row(cu_seqlens_q[i], i). The tiles of sequence
// i - 1 end at or before that row.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_padded_rows(int64 seqlen_q) {
  return num_tiles(seqlen_q, kBackwardRows) * kBackwardRows;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_packed_rows(int64 total_rows, int64 num_sequences) {
  return sm90_backward_padded_rows(total_rows + num_sequences * kBackwardRows);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_first_row(int64 q_begin, int64 sequence) {
  return (q_begin + sequence * kBackwardRows) / kBackwardRows * kBackwardRows;
}

// Byte offsets into the workspace, each a multiple of 256. In the shapes below, `heads` counts the query heads of all
// sequences, or equals num_heads_q for packed sequences. `rows` is the number of padded rows of one head. `blocks` is
// the grid size of the main kernel if it is persistent, and 0 otherwise. `sums` is the number of heads that have dq
// sums at the same time. If thread blocks own their heads, it equals the number of thread blocks.
struct Sm90BackwardWorkspace {
  int64 lse_log2;       // float (heads, rows)
  int64 delta;          // float (heads, rows)
  int64 log2_sums;      // float (heads, rows), if sums_rows is set
  int64 dq_sums;        // float (sums, rows, depth), except in the wide form
  int64 dq_turns;       // uint32 (heads, rows / 64, 4), if additions to dq have a fixed order
  int64 partial_sums;   // float (blocks, block_n, depth + depth_v)
  int64 partial_ready;  // uint32 (blocks, 2)
  int64 next_item;      // uint32
  int64 bytes;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90BackwardWorkspace make(const Sm90BackwardTile& tile,
                                                                               int64 heads, int64 rows, int64 blocks,
                                                                               int64 sums, bool is_deterministic,
                                                                               bool sums_rows) {
    const int64 statistics = aligned(heads * rows * kBackwardFloatBytes);
    const int64 counters = heads * rows / kBackwardRows * kBackwardTurns;
    const int64 key_sums = blocks * tile.block_n * tile.columns();
    Sm90BackwardWorkspace w = {};
    w.lse_log2 = 0;
    w.delta = w.lse_log2 + statistics;
    w.log2_sums = w.delta + statistics;
    w.dq_sums = w.log2_sums + (sums_rows ? statistics : 0);
    w.dq_turns = w.dq_sums + (tile.is_wide ? 0 : aligned(sums * rows * tile.depth * kBackwardFloatBytes));
    w.partial_sums = w.dq_turns + (is_deterministic ? aligned(counters * kCounterBytes) : 0);
    w.partial_ready = w.partial_sums + aligned(key_sums * kBackwardFloatBytes);
    w.next_item = w.partial_ready + aligned(blocks * 2 * kCounterBytes);
    w.bytes = w.next_item + aligned(kCounterBytes);
    return w;
  }

 private:
  static constexpr int64 kCounterBytes = sizeof(uint32);
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int64 aligned(int64 bytes) { return (bytes + 255) / 256 * 256; }
};

// Returns the number of floats in the sums of dk and dv, to which each query head of a group adds if kAddsUp is set.
// The sums have the same layout as the accumulators. `heads` counts the KV heads of all sequences.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_key_sums(const Sm90BackwardTile& tile, int64 heads,
                                                                        int64 key_blocks) {
  return heads * key_blocks * tile.block_n * tile.columns();
}

}  // namespace attend
