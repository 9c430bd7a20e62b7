// Sizes of sm90_forward on which host and device must agree: tile sizes, bytes of shared memory and the grid. The host
// chooses the tile sizes. docs/hopper_forward.md has the measurements behind the choice.
#pragma once

#include "../attention/long_sum.cuh"
#include "../attention/score_mods.cuh"
#include "../attention/work.cuh"
#include "../common/config_enums.cuh"
#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

constexpr int kSm90ConsumerRows = 64;
constexpr int kSm90WarpgroupThreads = 128;
constexpr int kSm90WorkSlots = 4;  // slots for query tiles that the producer has written and that some consumer still
                                   // needs
constexpr int kSm90WorkBytes = 32;
constexpr int kSm90HiddenTiles = 2;   // number of tiles, per buffer of k, whose bits of hidden keys are stored. Used if
                                      // kIsCached is set
constexpr int kSm90HiddenBytes = 16;  // bytes of the bits of hidden keys of one tile, with one bit per key
constexpr int kSm90LargestHeadDim = 256;

// Tile sizes and pipeline settings of a Config. The comment on each field names the Config constant with the same
// value.
struct Sm90ForwardTile {
  int consumers;           // kConsumers: warpgroups of 64 query rows each; kBlockM = 64 * consumers
  int block_n;             // kBlockN: number of keys of a tile
  int stages;              // kStages: number of buffers of k, and of v
  int q_buffers;           // kQBuffers: 2 if TMA stores o from the buffer of q, 1 if threads store o from registers
  int producer_registers;  // kProducerRegisters: registers per thread of warpgroup 0
  int consumer_registers;  // kConsumerRegisters: registers per thread of a consumer
  int overlaps;            // kOverlap: 1 if p v of a tile overlaps with the softmax of the next tile
  int takes_turns;         // kPingPong: 1 if consumers issue their products in turn
  int speculates;          // kSpeculate: 1 if p is computed before the row maximum is known
  Schedule schedule;       // kSchedule

  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int block_m() const { return consumers * kSm90ConsumerRows; }
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int threads() const { return (1 + consumers) * kSm90WarpgroupThreads; }
};

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_panels(int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

// Returns the number of columns of the product p v: head_dim_v, rounded up to a width that WgmmaOp supports.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_columns_v(int head_dim_v) {
  return head_dim_v <= 64 ? 64 : head_dim_v <= 192 ? (head_dim_v + 15) / 16 * 16 : 256;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_panels_q(int q_buffers, int head_dim, int head_dim_v) {
  const int of_o = q_buffers > 1 ? sm90_panels(sm90_columns_v(head_dim_v)) : 0;
  return sm90_panels(head_dim) > of_o ? sm90_panels(head_dim) : of_o;
}

// Returns the bytes of a bias tile that TMA loads. Used if Config::kTermsTiles is set.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_forward_terms_bytes(int consumers, int block_n) {
  return sm90_panels(block_n) * consumers * kSm90ConsumerRows * kSwizzleBytes;
}

// Returns the bytes of the Philox states of a tile's quads of keys (PhiloxQuad in factored_philox.cuh).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_forward_quad_bytes(int block_n) {
  constexpr int kKeysOfQuad = 4, kQuadBytes = 16;
  return block_n / kKeysOfQuad * kQuadBytes;
}

// Returns the number of warps that load keys from a cache, if each warp loads 32 rows of a tile.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_cached_loaders(int block_n) {
  return (block_n + 31) / 32;
}

// Returns the bytes of shared memory: Config::kSmemBytes.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_forward_smem_bytes(int consumers, int block_n, int stages,
                                                                       int q_buffers, int head_dim, int head_dim_v,
                                                                       bool terms_tiles, bool drops, bool is_cached,
                                                                       int key_loaders) {
  const int q = sm90_panels_q(q_buffers, head_dim, head_dim_v) * consumers * kSm90ConsumerRows * kSwizzleBytes;
  const int k_and_v = (sm90_panels(head_dim) + sm90_panels(sm90_columns_v(head_dim_v))) * block_n * kSwizzleBytes;
  const int tails = is_cached ? key_loaders : 1;
  const int barriers = 8 * (2 * q_buffers + 4 * stages + 2 * kSm90WorkSlots + tails);
  const int terms = terms_tiles ? sm90_forward_terms_bytes(consumers, block_n) : 0;
  const int quads = drops ? sm90_forward_quad_bytes(block_n) : 0;
  const int hidden = is_cached ? kSm90HiddenTiles * kSm90HiddenBytes : 0;
  const int bytes =
      q_buffers * q + stages * (k_and_v + terms + quads + hidden) + kSm90WorkSlots * kSm90WorkBytes + barriers;
  return (bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom;
}

// Returns the bytes of ForwardArgs::workspace if Config::kPutsAside is set (puts_sums_aside). Otherwise the workspace
// is null.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 sm90_aside_bytes(int64 blocks, int consumers, int head_dim_v) {
  return blocks * consumers * kSm90ConsumerRows * sm90_columns_v(head_dim_v) * static_cast<int64>(sizeof(float));
}

// Sizes derived from a Config.
template <class Config>
struct Sm90Shape {
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kBlockM = kConsumers * kSm90ConsumerRows;
  static constexpr int kThreads = (1 + kConsumers) * kSm90WarpgroupThreads;
  static constexpr int kQkSteps = (Config::kHeadDim + 15) / 16;  // number of products of depth 16 in q k^T
  static constexpr int kColumnsV = sm90_columns_v(Config::kHeadDimV);
  static constexpr int kPanelsQk = sm90_panels(Config::kHeadDim);
  static constexpr int kPanelsV = sm90_panels(kColumnsV);
  // With two buffers of q, TMA stores o from the buffer that held the q of the same rows. With one buffer, threads
  // store o from registers, so that the next q can be loaded as soon as the last scores are computed.
  static constexpr bool kStagesO = Config::kQBuffers > 1 && !Config::kAddsToOutputs && !Config::kSplitsKeys;
  static constexpr int kKeyLoaders = Config::kIsCached ? Config::kKeyLoaders : 1;
  static constexpr int kTails = kKeyLoaders;
  // Whether lanes copy keys with cp.async instead of TMA.
  static constexpr bool kCopiesKeys = Config::kIsCached && !Config::kHasBoxes;
  static constexpr int kPanelBytesQ = kBlockM * kSwizzleBytes;
  static constexpr int kPanelBytesK = Config::kBlockN * kSwizzleBytes;
  static constexpr int kQBytes = sm90_panels_q(Config::kQBuffers, Config::kHeadDim, Config::kHeadDimV) * kPanelBytesQ;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesK;
  static constexpr int kVBytes = kPanelsV * kPanelBytesK;
  static constexpr int kSmemBytes = sm90_forward_smem_bytes(
      kConsumers, Config::kBlockN, Config::kStages, Config::kQBuffers, Config::kHeadDim, Config::kHeadDimV,
      Config::kTermsTiles, Score<Config>::kDrops, Config::kIsCached, Config::kKeyLoaders);
  static constexpr int kTermsBytes = sm90_forward_terms_bytes(kConsumers, Config::kBlockN);
};

// The grid, and fields of Sm90ForwardArgs that follow from the shape of the problem.
struct Sm90ForwardGrid {
  uint32 row_tiles;      // query tiles of a head
  uint32 total_tiles;    // query tiles of all heads. For packed sequences this is an upper bound, and the device counts
                         // the actual tiles
  uint32 section_heads;  // query heads whose tiles run at the same time
  uint32 blocks;

  // `batch` is the number of sequences, seqlen_q is the longest one, and bytes_per_key counts k and v together.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr Sm90ForwardGrid of(int64 batch, int64 num_heads_q,
                                                                       int64 num_heads_k, int64 seqlen_q,
                                                                       int64 seqlen_k, int64 bytes_per_key, int block_m,
                                                                       int64 multiprocessors) {
    // At least kLeastHeads heads run at the same time, even if their keys exceed kSectionBytes. With 4 to 16 heads the
    // measured speed was the same. If a single head keeps the GPU busy for long, blocks drift apart in time. Only
    // blocks of the same head then find its keys in the L2 cache, so the minimum is 1.
    constexpr int64 kLeastHeads = 8, kTilesOfLongHead = 2048;
    const int64 row_tiles = num_tiles(seqlen_q, block_m);
    const int64 heads = batch * num_heads_q;
    const int64 total = row_tiles * heads;
    const int64 bytes_per_head = seqlen_k * bytes_per_key * num_heads_k / (num_heads_q < 1 ? 1 : num_heads_q);
    const int64 fitting = kSectionBytes / (bytes_per_head < 1 ? 1 : bytes_per_head);
    const int64 least = row_tiles < kTilesOfLongHead ? kLeastHeads : 1;
    const int64 most = fitting > least ? fitting : least;
    const int64 sections = num_tiles(heads, most);
    return {static_cast<uint32>(row_tiles), static_cast<uint32>(total),
            static_cast<uint32>(num_tiles(heads, sections < 1 ? 1 : sections)),
            static_cast<uint32>(total < multiprocessors ? total : multiprocessors)};
  }
};

}  // namespace attend
