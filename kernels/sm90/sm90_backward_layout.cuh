// Tile sizes of the sm90 backward kernels, and the bytes of shared memory that they need. Shared by host and device.
//
// The host fills a Config from sm90_backward_tile(). It launches sm90_backward_prepare, then sm90_backward, and then
// sm90_backward_finish unless thread blocks own their heads. If dk and dv are summed in memory, it also launches
// sm90_backward_finish_keys. For the wide form it launches sm90_backward_prepare, sm90_backward_wide_keys and
// sm90_backward_wide_queries. The kernels assert that their storage has the size computed here.
#pragma once

#include "../attention/score_mods.cuh"
#include "../common/element.cuh"
#include "../common/portable.cuh"
#include "sm90_backward_registers.cuh"

namespace attend {

// Bytes of one element of q, k, v, dout, ds and the bias.
constexpr int kBackwardElementBytes = sizeof(Bits16);
constexpr int kBackwardFloatBytes = sizeof(float);
constexpr int kBackwardBarrierBytes = 8;    // sizeof(Mbarrier)
constexpr int kBackwardMostSmem = 232448;   // bytes of shared memory available to a thread block
constexpr int kBackwardItemBytes = 64;      // sizeof(Sm90BackwardItem)
constexpr int kBackwardTargetBytes = 16;    // sizeof(BackwardTarget)
constexpr int kBackwardRowBlockBytes = 72;  // sizeof(BackwardRowBlock)

constexpr int kBackwardRows = 64;             // query rows of a query tile: kBlockM
constexpr int kBackwardKeysOfWarpgroup = 64;  // keys of a computing warpgroup
constexpr int kBackwardPanelColumns = 64;     // head dimensions are zero-padded to a multiple of this
constexpr int kBackwardPassColumns = 64;      // columns of dq that a warpgroup computes at a time
constexpr int kBackwardItemRing = 8;          // slots for work items that the loader has written and other warps still
                                              // need

constexpr int kBackwardPrepareThreads = 256;
constexpr int kBackwardFinishThreads = 128;  // each warp has 16 rows

constexpr int kBackwardWideKeys = 64;        // keys of a key tile in the wide form
constexpr int kBackwardWideRows = 128;       // query rows of a block of sm90_backward_wide_queries: 64 per warpgroup
constexpr int kBackwardWideHandovers = 2;    // buffers through which one warpgroup passes p to the other warpgroup
constexpr int kBackwardWideKeyStages = 2;    // number of buffers of k in sm90_backward_wide_queries
constexpr int kBackwardWideValueStages = 2;  // maximum number of buffers of v in sm90_backward_wide_queries
constexpr int kBackwardTermsStages = 2;      // maximum number of buffers of the bias in sm90_backward_wide_queries
// Bytes of one bias tile.
constexpr int kBackwardTermsBytes = kBackwardRows * kBackwardWideKeys * kBackwardElementBytes;

// sm90_backward_wide_queries also computes the gradient of the bias. Thread blocks whose sequences share bias entries
// form a cluster. A key tile has 8 chunks of 8 keys. The block with rank r sums and stores the chunks from
// backward_dterms_chunk(r) up to, but not including, backward_dterms_chunk(r + 1).
constexpr int kBackwardMostDtermsBlocks = 8;  // largest number of thread blocks in a cluster; every GPU supports this
                                              // size
constexpr int kBackwardDtermsChunks = 8;      // number of chunks of a key tile
constexpr int kBackwardDtermsBuffers = 2;     // maximum number of buffers in which blocks of a cluster exchange ds
constexpr int kBackwardDtermsChunkBytes = kBackwardRows * 8 * kBackwardFloatBytes;
// Returns the first chunk of the block with this rank.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int backward_dterms_chunk(int rank, int blocks) {
  return (kBackwardDtermsChunks * rank + blocks - 1) / blocks;
}
// Returns the largest number of chunks that one block sums.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int backward_dterms_chunks(int blocks) {
  return blocks < 1 ? 0 : (kBackwardDtermsChunks + blocks - 1) / blocks;
}

// Constants of a Config that follow from the head dimensions and the score modifications.
struct Sm90BackwardTile {
  int depth;            // columns of q and k in shared memory, from 64 to 256, including zero padding beyond head_dim
  int depth_v;          // columns of v and dout in shared memory, with the same limits and padding
  bool is_wide;         // true if one kernel computes dk and dv, and a second kernel computes dq
  bool is_persistent;   // true if a thread block iterates over a list of key blocks, false if it has one key block
  int block_n;          // number of keys of a thread block
  int stages;           // number of buffers of q, and of dout
  int ds_buffers;       // number of buffers of ds
  int staging_buffers;  // number of buffers that hold dq before it is added to memory, 64 x 64 floats each
  // Registers per thread, from Sm90BackwardRegisters.
  int compute_registers;
  int query_registers;
  int load_registers;
  int threads;
  int smem_bytes;  // shared memory of the kernel that computes dk and dv
  // Fields of sm90_backward_wide_queries, set if is_wide.
  int v_stages;        // number of buffers of v
  int terms_stages;    // number of buffers of the bias
  int dterms_buffers;  // number of buffers in which a cluster exchanges ds; 0 without a cluster
  int dq_smem_bytes;

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int columns() const { return depth + depth_v; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int compute_warpgroups() const {
    return block_n / kBackwardKeysOfWarpgroup;
  }
  ATTEND_HOST_DEVICE constexpr void set_registers(const Sm90BackwardRegisters& registers) {
    compute_registers = registers.compute;
    query_registers = registers.query;
    load_registers = registers.load;
    threads = registers.threads();
  }
};

// Returns the bytes of a tile of 16-bit elements with this shape.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_tile_bytes(int rows, int columns) {
  return rows * columns * kBackwardElementBytes;
}
// Returns the bytes of lse and delta for `stages` buffers.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_statistics_bytes(int stages) {
  return 2 * stages * kBackwardRows * kBackwardFloatBytes;
}
// Rounds `bytes` up to a multiple of 1 KiB. Tiles and the entire storage have this alignment.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_whole_kilobytes(int bytes) {
  return (bytes + 1023) / 1024 * 1024;
}

// Number of barriers and bytes of shared memory of sm90_backward. They describe Sm90BackwardStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_barriers(const Sm90BackwardTile& t) {
  const int of_items = 2 * kBackwardItemRing;                     // full and empty barriers of the work items
  const int of_keys = 2 * 2 + 1;                                  // full and empty barriers of k and v, and a barrier
                                                                  // of tiles whose last rows are cleared
  const int of_rows = 2 * 2 * t.stages;                           // full and empty barriers of q and dout
  const int of_ds = t.ds_buffers * (t.compute_warpgroups() + 1);  // for each buffer of ds, a full barrier for each
                                                                  // warpgroup, and one empty barrier
  const int of_dq = 2 * t.staging_buffers;                        // full and empty barriers of the staging buffers of
                                                                  // dq
  return of_items + of_keys + of_rows + of_ds + of_dq;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_smem_bytes(const Sm90BackwardTile& t) {
  const int k_and_v = sm90_backward_tile_bytes(t.block_n, t.columns());
  const int q_and_dout = t.stages * sm90_backward_tile_bytes(kBackwardRows, t.columns());
  const int ds = t.ds_buffers * sm90_backward_tile_bytes(kBackwardRows, t.block_n);
  const int dq = t.staging_buffers * kBackwardRows * kBackwardPassColumns * kBackwardFloatBytes;
  const int items = kBackwardItemRing * kBackwardItemBytes;
  const int targets = t.staging_buffers * kBackwardTargetBytes;
  const int barriers = sm90_backward_barriers(t) * kBackwardBarrierBytes;
  return sm90_backward_whole_kilobytes(k_and_v + q_and_dout + ds + dq + sm90_backward_statistics_bytes(t.stages) +
                                       items + targets + barriers);
}

// Number of barriers and bytes of shared memory of sm90_backward_wide_keys. They describe Sm90BackwardWideKeysStorage.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_keys_barriers(int stages) {
  const int of_keys = 2;                        // full barriers of k and v
  const int of_tails = 2;                       // one barrier for each loading warp
  const int of_rows = 2 * 2 * stages;           // full and empty barriers of q and dout
  const int of_p = 2 * kBackwardWideHandovers;  // full and empty barriers of p
  return of_keys + of_tails + of_rows + of_p;
}
// Bytes of the dropout decisions that one warpgroup passes to the other, with one bit per entry of p.
constexpr int kBackwardKeptBytes = kBackwardWideHandovers * kBackwardRows * kBackwardWideKeys / 8;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_keys_smem(int columns, int stages,
                                                                            const ScoreModTraits& score) {
  const int k_and_v = sm90_backward_tile_bytes(kBackwardWideKeys, columns);
  const int q_and_dout = stages * sm90_backward_tile_bytes(kBackwardRows, columns);
  const int terms = score.adds_from_memory ? stages * kBackwardTermsBytes : 0;
  const int kept = score.drops ? kBackwardKeptBytes : 0;
  const int p = kBackwardWideHandovers * kBackwardRows * kBackwardWideKeys * kBackwardFloatBytes;
  const int barriers = sm90_backward_wide_keys_barriers(stages) * kBackwardBarrierBytes;
  return sm90_backward_whole_kilobytes(k_and_v + q_and_dout + terms + p + kept +
                                       sm90_backward_statistics_bytes(stages) + kBackwardItemBytes + barriers);
}

// Number of barriers and bytes of shared memory of sm90_backward_wide_queries. They describe
// Sm90BackwardWideQueriesStorage.
constexpr int kBackwardWideQueryWarpgroups = kBackwardWideRows / kBackwardRows;

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_queries_barriers(int v_stages) {
  const int of_rows = 2;                                                        // full barriers of q and dout
  const int of_tails = 2;                                                       // one barrier for each loading warp
  const int of_keys = 2 * (kBackwardWideKeyStages + v_stages);                  // full and empty barriers of k and v
  const int of_terms = 2 * kBackwardTermsStages;                                // full and empty barriers of bias tiles
  const int of_ds = 2 * kBackwardWideQueryWarpgroups * kBackwardDtermsBuffers;  // full and empty barriers of ds
  return of_rows + of_tails + of_keys + of_terms + of_ds;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_wide_queries_smem(const Sm90BackwardTile& t,
                                                                               int dterms_blocks) {
  const int q_and_dout = sm90_backward_tile_bytes(kBackwardWideRows, t.columns());
  const int k = kBackwardWideKeyStages * sm90_backward_tile_bytes(kBackwardWideKeys, t.depth);
  const int v = t.v_stages * sm90_backward_tile_bytes(kBackwardWideKeys, t.depth_v);
  const int terms = t.terms_stages * kBackwardWideQueryWarpgroups * kBackwardTermsBytes;
  // Number of chunks that a warpgroup receives from all blocks of its cluster.
  const int chunks = backward_dterms_chunks(dterms_blocks) * dterms_blocks;
  const int ds = t.dterms_buffers * kBackwardWideQueryWarpgroups * chunks * kBackwardDtermsChunkBytes;
  const int barriers = sm90_backward_wide_queries_barriers(t.v_stages) * kBackwardBarrierBytes;
  return sm90_backward_whole_kilobytes(q_and_dout + k + v + terms + ds + kBackwardRowBlockBytes + barriers);
}

// Sets the numbers of buffers of sm90_backward_wide_queries to the largest that fit into shared memory, but at most two
// each. If two do not fit, the exchange of ds is the first to get only one buffer, followed by the bias and by v. If
// even one buffer each does not fit, dq_smem_bytes exceeds kBackwardMostSmem. sm90_backward_tile() describes
// dterms_blocks.
ATTEND_HOST_DEVICE constexpr void sm90_backward_set_dq_smem(Sm90BackwardTile& t, bool has_terms, int dterms_blocks) {
  const int most_terms = has_terms ? kBackwardTermsStages : 0;
  const int most_dterms = dterms_blocks > 1 ? kBackwardDtermsBuffers : 0;
  for (t.v_stages = kBackwardWideValueStages; t.v_stages > 0; --t.v_stages) {
    for (t.terms_stages = most_terms;; --t.terms_stages) {
      for (t.dterms_buffers = most_dterms;; --t.dterms_buffers) {
        t.dq_smem_bytes = sm90_backward_wide_queries_smem(t, dterms_blocks);
        if (t.dq_smem_bytes <= kBackwardMostSmem) return;
        if (t.dterms_buffers <= 1) break;
      }
      if (t.terms_stages <= 1) break;
    }
  }
}

// Returns the tile sizes of blocks that are not persistent. Both head dimensions must be at most 64.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_narrow_tile() {
  Sm90BackwardTile t = {};
  t.depth = t.depth_v = 64;
  t.block_n = kBackwardNarrowRegisters.computing * kBackwardKeysOfWarpgroup;
  t.stages = 4;
  t.ds_buffers = 2;
  t.staging_buffers = 1;
  t.set_registers(kBackwardNarrowRegisters);
  t.smem_bytes = sm90_backward_smem_bytes(t);
  return t;
}

// Returns the tile sizes if both head dimensions are at most 128.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_persistent_tile(int head_dim,
                                                                                          int head_dim_v) {
  Sm90BackwardTile t = {};
  t.depth = head_dim <= 64 ? 64 : 128;
  t.depth_v = head_dim_v <= 64 ? 64 : 128;
  t.is_persistent = true;
  t.block_n = kBackwardPersistentRegisters.computing * kBackwardKeysOfWarpgroup;
  t.stages = t.columns() == 2 * kBackwardPanelColumns ? 4 : 2;
  t.ds_buffers = 4;
  t.staging_buffers = 2;
  t.set_registers(kBackwardPersistentRegisters);
  t.smem_bytes = sm90_backward_smem_bytes(t);
  return t;
}

// Returns the tile sizes for head dimensions up to 256. With a bias the limit is 192, because for larger head
// dimensions the tiles do not fit into shared memory.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_wide_tile(int head_dim, int head_dim_v,
                                                                                    const ScoreModTraits& score,
                                                                                    int dterms_blocks) {
  constexpr int kMostStages = 4;
  Sm90BackwardTile t = {};
  t.depth = (head_dim + kBackwardPanelColumns - 1) / kBackwardPanelColumns * kBackwardPanelColumns;
  t.depth_v = (head_dim_v + kBackwardPanelColumns - 1) / kBackwardPanelColumns * kBackwardPanelColumns;
  t.is_wide = true;
  t.block_n = kBackwardWideKeys;
  t.set_registers(kBackwardWideRegisters);
  t.stages = kMostStages;
  while (t.stages > 1 && sm90_backward_wide_keys_smem(t.columns(), t.stages, score) > kBackwardMostSmem) --t.stages;
  t.smem_bytes = sm90_backward_wide_keys_smem(t.columns(), t.stages, score);
  sm90_backward_set_dq_smem(t, score.adds_from_memory, dterms_blocks);
  return t;
}

// Returns whether sm90_backward has registers for the derivatives of transformed scores. It keeps p times the
// derivative in the registers of lse. With a bias, a position term, a custom score or dropout these registers are in
// use.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool sm90_backward_keeps_slopes(const ScoreModTraits& score) {
  return !score.adds() && !score.drops;
}

// Returns the tile sizes of a problem. dterms_blocks is the number of sequences that share entries of the bias
// gradient, 1 if none are shared, or 0 if that gradient is not requested. is_persistent selects the persistent form
// also for head dimensions up to 64.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardTile sm90_backward_tile(int head_dim, int head_dim_v,
                                                                               const ScoreModTraits& score,
                                                                               int dterms_blocks,
                                                                               bool is_persistent = false) {
  if (head_dim > 128 || head_dim_v > 128 || score.adds_from_memory ||
      (score.transforms && !sm90_backward_keeps_slopes(score))) {
    return sm90_backward_wide_tile(head_dim, head_dim_v, score, dterms_blocks);
  }
  if (head_dim > 64 || head_dim_v > 64 || is_persistent) {
    return sm90_backward_persistent_tile(head_dim, head_dim_v);
  }
  return sm90_backward_narrow_tile();
}

}  // namespace attend
