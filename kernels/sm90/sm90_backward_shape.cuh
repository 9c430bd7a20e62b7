// Sizes of the sm90 backward kernels that host and device compute alike: tiles, shared memory, workspace, grids.
//
// The host fills a Config from sm90_backward_tile(), the workspace from Sm90BackwardWorkspace, and launches three
// kernels in a row: sm90_backward_prepare, sm90_backward, sm90_backward_finish; and sm90_backward_finish_keys where dk
// and dv are added up in memory. If a head dimension is above 128, or scores are transformed or have a term from
// memory, they are sm90_backward_prepare, sm90_backward_wide_keys, sm90_backward_wide_queries.
#pragma once

#include "../attention/score_mods.cuh"
#include "../attention/work.cuh"
#include "../common/config_enums.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kBackwardRows = 64;         // query rows of a tile: kBlockM
constexpr int kBackwardPassColumns = 64;  // columns of dq that a warpgroup computes at a time
constexpr int kBackwardPrepareThreads = 256;
constexpr int kBackwardFinishThreads = 128;  // a warp has 16 rows
constexpr int kBackwardTurns = 4;            // counters of a tile of dq: of its passes, or of the warps of its only one
constexpr int kBackwardItemBytes = 64;       // sizeof(Sm90BackwardItem)
constexpr int kBackwardItemRing = 8;         // items on their way from the loader to the other warps
constexpr int kBackwardMostSmem = 232448;    // bytes of a block
constexpr int kBackwardWideKeys = 64;        // of a block and of a tile, beyond 128 columns
constexpr int kBackwardWideRows = 128;       // of a block that makes dq there: 64 a warpgroup
constexpr int kBackwardWideHandovers = 2;    // buffers of p, from one warpgroup to the other
constexpr int kBackwardRowBlockBytes = 72;   // sizeof(BackwardRowBlock)
constexpr int kBackwardWideKeyStages = 2;    // buffers of k where dq is made
constexpr int kBackwardBiasStages = 2;       // of a bias there, at most
constexpr int kBackwardBiasBytes = 64 * 64 * 2;  // a tile of the bias, in shared memory

// The gradient of a bias is made with dq. Blocks that share entries of it, each with a sequence of its own, are a
// cluster: each adds up and stores a share of the 8 chunks of 8 keys of a tile, from chunk
// backward_dbias_chunk(rank, blocks) on.
constexpr int kBackwardMostDbiasBlocks = 8;     // that every GPU runs as a cluster
constexpr int kBackwardDbiasChunks = 8;         // of 8 keys
constexpr int kBackwardDbiasBuffers = 2;        // of ds on its way between blocks, at most
constexpr int kBackwardDbiasChunkBytes = 2048;  // 64 rows of 8 keys, as floats
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int backward_dbias_chunk(int rank, int blocks) {
  return (kBackwardDbiasChunks * rank + blocks - 1) / blocks;
}
// Of the block that has most.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int backward_dbias_chunks(int blocks) {
  return blocks < 1 ? 0 : (kBackwardDbiasChunks + blocks - 1) / blocks;
}

// p is computed 2^p_bits times too large, which nothing but factors at the end know of: small entries, and with them
// the gradients of keys that are seen a little, would else vanish where p is rounded for the products. p is at most 1
// but for rounding, so that in float16 it stays below 65504; bfloat16 has float's range, and float's smallest numbers
// are kept. ds is too large by 2^ds_bits: in float16 there is no room, since it may be as large as dout and v make it.
struct Sm90BackwardUnits {
  int p_bits;
  int ds_bits;
};
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardUnits sm90_backward_units(ElementType element) {
  if (element == ElementType::kF16) return {14, 0};
  return {24, 24};
}
// 2^-bits
[[nodiscard]] ATTEND_HOST_DEVICE constexpr float sm90_backward_unit(int bits) {
  return 1.0f / static_cast<float>(1 << bits);
}

// The constants of a Config that follow from the head dimensions.
struct Sm90BackwardTile {
  int depth;              // columns of q and k in shared memory: 64 to 256, zeros behind head_dim
  int depth_v;            // of v and dout
  bool is_wide;           // beyond 128 columns, or by the scores: one kernel for dk and dv, one for dq
  bool is_persistent;     // a block walks over a list of key blocks; otherwise it has one
  int block_n;            // keys: 64 a computing warpgroup
  int stages;             // buffers of q, and of dout
  int ds_buffers;         // of ds
  int staging_buffers;    // of dq on its way to memory, 64 x 64 floats each
  int compute_registers;  // per thread of the warpgroups that compute p, ds, dk, dv
  int query_registers;    // of the one that computes dq
  int load_registers;     // of the one that loads; 0 where there is none
  int threads;
  int smem_bytes;     // of the kernel that makes dk and dv
  int v_stages;       // is_wide: buffers of v where dq is made
  int bias_stages;    // of a bias there
  int dbias_buffers;  // of ds on its way to the blocks of a cluster; 0 where there is none
  int dq_smem_bytes;  // is_wide: of the kernel that makes dq

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int compute_warpgroups() const { return block_n / 64; }
};

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_whole_kilobytes(int bytes) {
  return (bytes + 1023) / 1024 * 1024;  // the tiles' alignment
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_smem_bytes(const Sm90BackwardTile& t) {
  const int tiles = 2 * (t.block_n * (t.depth + t.depth_v) + t.stages * kBackwardRows * (t.depth + t.depth_v) +
                         t.ds_buffers * kBackwardRows * t.block_n);
  const int staging = t.staging_buffers * kBackwardRows * kBackwardPassColumns * 4;
  const int rows = 2 * t.stages * kBackwardRows * 4;
  const int items = kBackwardItemRing * kBackwardItemBytes;
  const int targets = t.staging_buffers * 16;
  const int barriers =
      2 * kBackwardItemRing + 5 + 4 * t.stages + t.ds_buffers * (t.compute_warpgroups() + 1) + 2 * t.staging_buffers;
  return sm90_backward_whole_kilobytes(tiles + staging + rows + items + targets + barriers * 8);
}

// Of sm90_backward_wide_keys: k and v, q and dout (and a bias) in stages, p on its way between the warpgroups.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_keys_smem(int columns, int stages, bool has_bias) {
  const int tiles = 2 * kBackwardWideKeys * columns * (1 + stages) + (has_bias ? stages * kBackwardBiasBytes : 0);
  const int handovers = kBackwardWideHandovers * kBackwardRows * kBackwardWideKeys * 4;
  const int rows = 2 * stages * kBackwardRows * 4;
  const int barriers = 4 + 4 * stages + 2 * kBackwardWideHandovers;
  return sm90_backward_whole_kilobytes(tiles + handovers + rows + kBackwardItemBytes + barriers * 8);
}
// Of sm90_backward_wide_queries: q and dout, k, v and a bias in stages, ds on its way between blocks.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_queries_smem(const Sm90BackwardTile& t,
                                                                               int dbias_blocks) {
  constexpr int kWarpgroups = kBackwardWideRows / kBackwardRows;
  const int rows = 2 * kBackwardWideRows * (t.depth + t.depth_v);
  const int keys = 2 * kBackwardWideKeys * (kBackwardWideKeyStages * t.depth + t.v_stages * t.depth_v);
  const int bias = t.bias_stages * kWarpgroups * kBackwardBiasBytes;
  const int ds =
      t.dbias_buffers * kWarpgroups * backward_dbias_chunks(dbias_blocks) * dbias_blocks * kBackwardDbiasChunkBytes;
  const int barriers =
      4 + 2 * (kBackwardWideKeyStages + t.v_stages + kBackwardBiasStages) + 2 * kWarpgroups * kBackwardDbiasBuffers;
  return sm90_backward_whole_kilobytes(rows + keys + bias + ds + kBackwardRowBlockBytes + barriers * 8);
}
// Fills in the buffers: two of each where they fit, and else rather fewer on the way between blocks, then of the bias,
// then of v. dbias_blocks: as in sm90_backward_tile().
ATTEND_HOST_DEVICE constexpr void sm90_backward_set_dq_smem(Sm90BackwardTile& t, bool has_bias, int dbias_blocks) {
  for (t.v_stages = 2; t.v_stages > 0; --t.v_stages) {
    for (t.bias_stages = has_bias ? kBackwardBiasStages : 0;; --t.bias_stages) {
      for (t.dbias_buffers = dbias_blocks > 1 ? kBackwardDbiasBuffers : 0;; --t.dbias_buffers) {
        t.dq_smem_bytes = sm90_backward_wide_queries_smem(t, dbias_blocks);
        if (t.dq_smem_bytes <= kBackwardMostSmem) return;
        if (t.dbias_buffers <= 1) break;
      }
      if (t.bias_stages <= 1) break;
    }
  }
}

// Two warpgroups that compute, 240 registers, 214 for products: dk or dv 128, s or dp 32, ds or p 16; and in the other
// kernel dq 128, s 32, dp 32, ds 16. Without a bias every head_dim to 256 fits into shared memory, with one those to
// 192.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_wide_tile(int head_dim, int head_dim_v,
                                                                                    bool has_bias, int dbias_blocks) {
  Sm90BackwardTile t = {};
  t.depth = (head_dim + 63) / 64 * 64;
  t.depth_v = (head_dim_v + 63) / 64 * 64;
  t.is_wide = true;
  t.block_n = kBackwardWideKeys;
  t.compute_registers = 240;
  t.load_registers = 24;
  t.threads = 384;
  t.stages = 4;
  while (t.stages > 1 && sm90_backward_wide_keys_smem(t.depth + t.depth_v, t.stages, has_bias) > kBackwardMostSmem) {
    --t.stages;
  }
  t.smem_bytes = sm90_backward_wide_keys_smem(t.depth + t.depth_v, t.stages, has_bias);
  sm90_backward_set_dq_smem(t, has_bias, dbias_blocks);
  return t;
}

// Registers: ptxas places operands of wgmma from R24 on, so that accumulators and A operands alive between the first
// issue and the drain are at most registers - 26. 128 columns: dk, dv 128, s or dp 32, p 16: 176 of 182, and
// 2 x 208 + 64 + 32 = 512 are all there are. 64 columns: 64 + 32 + 16 = 112 of 118, 3 x 144 + 80 = 512.
// dbias_blocks: sequences that share entries of the bias's gradient: 1 where none does, 0 where none is asked for.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_tile(int head_dim, int head_dim_v,
                                                                               const ScoreModTraits& score,
                                                                               int dbias_blocks) {
  if (head_dim > 128 || head_dim_v > 128 || score.transforms || score.adds_from_memory) {
    return sm90_backward_wide_tile(head_dim, head_dim_v, score.adds_from_memory, dbias_blocks);
  }
  Sm90BackwardTile t = {};
  t.depth = head_dim <= 64 ? 64 : 128;
  t.depth_v = head_dim_v <= 64 ? 64 : 128;
  t.is_persistent = t.depth > 64 || t.depth_v > 64;
  t.block_n = t.is_persistent ? 128 : 192;
  t.stages = t.is_persistent ? 2 : 4;
  t.ds_buffers = t.is_persistent ? 4 : 2;
  t.staging_buffers = t.is_persistent ? 2 : 1;
  t.compute_registers = t.is_persistent ? 208 : 144;
  t.query_registers = t.is_persistent ? 64 : 80;
  t.load_registers = t.is_persistent ? 32 : 0;
  t.threads = 512;
  t.smem_bytes = sm90_backward_smem_bytes(t);
  return t;
}

// Warpgroups can take no more registers than others have given of what the block started with: who asks for more waits
// for ever. 384 threads start with 168 each and not with 170, for these come by the 8: 2 x 240 + 24 = 3 x 168.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm90_backward_registers_suffice(const Sm90BackwardTile& t) {
  constexpr int kRegisters = 65536;
  const int start = kRegisters / t.threads / 8 * 8 * (t.threads / 128);
  const int computing = t.is_wide ? 2 : t.compute_warpgroups();
  return computing * t.compute_registers + t.query_registers + t.load_registers <= start;
}
static_assert(sm90_backward_registers_suffice(sm90_backward_tile(64, 64, {}, 0)));
static_assert(sm90_backward_registers_suffice(sm90_backward_tile(128, 128, {}, 0)));
static_assert(sm90_backward_registers_suffice(sm90_backward_tile(128, 128, traits_of(ScoreMod::kBias), 1)));
static_assert(sm90_backward_registers_suffice(sm90_backward_tile(128, 128, traits_of(ScoreMod::kBias), 2)));
static_assert(sm90_backward_registers_suffice(sm90_backward_tile(256, 256, {}, 0)));

// Rows of one head's statistics and sums: whole tiles of rows for each sequence. In packed tokens the tiles of sequence
// i start at sm90_backward_first_row(cu_seqlens_q[i], i): at least kBackwardRows further than those of the one before
// end, whatever the lengths.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_padded_rows(int64 seqlen_q) {
  return num_tiles(seqlen_q, kBackwardRows) * kBackwardRows;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_packed_rows(int64 total_rows, int64 num_sequences) {
  return sm90_backward_padded_rows(total_rows + num_sequences * kBackwardRows);
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_first_row(int64 q_begin, int64 sequence) {
  return (q_begin + sequence * kBackwardRows) / kBackwardRows * kBackwardRows;
}

// Byte offsets into the workspace, each a multiple of 256. heads: query heads of all sequences (of one pass of packed
// tokens: num_heads_q); rows: padded rows of one head; blocks: of the main kernel's grid if persistent, else 0.
struct Sm90BackwardWorkspace {
  int64 lse_log2;       // float (heads, rows)
  int64 delta;          // float (heads, rows)
  int64 log2_sums;      // float (heads, rows), with a bias
  int64 dq_sums;        // float (heads, rows, depth); none where tiles are wide
  int64 dq_turns;       // uint32 (heads, rows / 64, 4), where additions to dq have an order
  int64 partial_sums;   // float (blocks, block_n, depth + depth_v)
  int64 partial_ready;  // uint32 (blocks, 2)
  int64 next_item;      // uint32
  int64 bytes;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90BackwardWorkspace make(const Sm90BackwardTile& tile,
                                                                               int64 heads, int64 rows, int64 blocks,
                                                                               bool is_deterministic, bool has_bias) {
    Sm90BackwardWorkspace w = {};
    w.lse_log2 = 0;
    w.delta = w.lse_log2 + aligned(heads * rows * 4);
    w.log2_sums = w.delta + aligned(heads * rows * 4);
    w.dq_sums = w.log2_sums + (has_bias ? aligned(heads * rows * 4) : 0);
    w.dq_turns = w.dq_sums + (tile.is_wide ? 0 : aligned(heads * rows * tile.depth * 4));
    w.partial_sums = w.dq_turns + (is_deterministic ? aligned(heads * rows / kBackwardRows * kBackwardTurns * 4) : 0);
    w.partial_ready = w.partial_sums + aligned(blocks * tile.block_n * (tile.depth + tile.depth_v) * 4);
    w.next_item = w.partial_ready + aligned(blocks * 2 * 4);
    w.bytes = w.next_item + 256;
    return w;
  }

 private:
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr int64 aligned(int64 bytes) { return (bytes + 255) / 256 * 256; }
};

// Floats of the sums of dk and dv, in the order of the accumulators that they are added from: where kAddsUp, that is
// each query head of a group adds its own. heads: of k, of all sequences.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_key_sums(const Sm90BackwardTile& tile, int64 heads,
                                                                        int64 key_blocks) {
  return heads * key_blocks * tile.block_n * (tile.depth + tile.depth_v);
}

// The order in which the key blocks of a sequence add to a tile of dq, where there is one: that of the list. A block
// takes what is next in the list, or every so manieth of it, and works in that order, so that the first key block
// in the list that is not done waits for nobody: nothing waits for ever.
//
// From the last key block down: under a causal mask these are the short ones, and the tiles that a key block begins
// with are those that the blocks before it have left behind. In a list of many (is_persistent, more than kFew key
// blocks a sequence) that is only so for the last half of the keys; then come the others from the first one up:
// longest first, so that the launch does not end with the longest. They have their first tiles on the diagonal to
// themselves, and by the time that they meet the rows of the last half these are done. Measured:
// docs/hopper_backward.md.
struct Sm90BackwardOrder {
  int blocks;   // of the sequence
  int upwards;  // the key blocks before this one come last, from the first one up

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90BackwardOrder of(int blocks, bool is_persistent) {
    constexpr int kFew = 16;
    return {blocks, !is_persistent || blocks <= kFew ? 0 : blocks - blocks / 2};
  }
  // The key block at this place of the order.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_at(int place) const {
    return place < blocks - upwards ? blocks - 1 - place : place - (blocks - upwards);
  }
  // How many of the key blocks first to last, all that a tile of rows sees, are before this one of them.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int before(int block, int first, int last) const {
    if (block >= upwards) return last - block;
    const int first_of_last_half = first > upwards ? first : upwards;
    return (last < first_of_last_half ? 0 : last - first_of_last_half + 1) + block - first;
  }
};

// Heads of k that share the GPU while their key blocks are worked off, longest first, where blocks differ in length.
// All blocks of a head are at the same query head of its group; what these read and add to should be about 64 MB. Where
// kAddsUp they are query heads.
// Measured at (2, 16, 8192, 128) causal; more than 32 heads bring nothing. Without such differences heads follow one
// another: 1.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_section(int64 seqlen_q, bool is_full,
                                                                        bool is_deterministic, bool is_persistent) {
  if (is_full) return 1;
  // The more heads side by side, the less a key block waits for that before it, and the less of them the L2 cache has.
  if (is_deterministic) return is_persistent ? 32 : 4;
  const int64 heads = 65536 / (seqlen_q < 1 ? 1 : seqlen_q);
  return static_cast<uint32>(heads < 1 ? 1 : heads > 32 ? 32 : heads);
}

// Heads side by side where additions to dq have an order and all key blocks are alike: as many as there are blocks for.
// A key block then follows the one before it in a head at the same distance in each, and waits for it once. A
// persistent block keeps its place in the order by itself, sm90_backward_blocks().
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 sm90_backward_full_section(const Sm90BackwardTile& tile,
                                                                             int64 key_blocks, int64 multiprocessors) {
  if (tile.is_persistent || key_blocks < 1 || key_blocks > multiprocessors) return 1;
  return static_cast<uint32>(multiprocessors / key_blocks);
}

// Blocks of the three kernels. num_sequences: batch, or of packed tokens; seqlens: upper bounds where packed.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                          int64 num_sequences) {
  const int64 blocks = num_tiles(seqlen_q, kBackwardRows) * num_heads_q * num_sequences;
  return blocks < 1 ? 1 : blocks;  // prepare also resets counters
}
// num_heads: of k, or where kAddsUp of q.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_items(const Sm90BackwardTile& tile, int64 seqlen_k,
                                                                     int64 num_heads, int64 num_sequences) {
  return num_tiles(seqlen_k, tile.block_n) * num_heads * num_sequences;
}
// Of sm90_backward_wide_queries.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_wide_row_blocks(int64 seqlen_q, int64 num_heads_q,
                                                                               int64 num_sequences) {
  return num_tiles(seqlen_q, kBackwardWideRows) * num_heads_q * num_sequences;
}
// key_blocks: of a sequence. Where additions to dq have an order and all key blocks are alike (keeps_place), a
// persistent block keeps its place in that order, so that it waits for others once and not again with each key
// block.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_backward_blocks(const Sm90BackwardTile& tile, int64 items,
                                                                      int64 key_blocks, int64 multiprocessors,
                                                                      bool keeps_place) {
  if (!tile.is_persistent || items <= multiprocessors) return items;
  if (!keeps_place || key_blocks > multiprocessors) return multiprocessors;
  return multiprocessors / key_blocks * key_blocks;
}

}  // namespace attend
