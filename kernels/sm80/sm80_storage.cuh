// The work of a thread block of sm80_forward, and its shared memory.
#pragma once

#include "../attention/accumulator_scores.cuh"
#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/score_rules.cuh"
#include "../attention/sequence.cuh"
#include "../attention/work.cuh"
#include "../common/element.cuh"
#include "../tiles/smem_tile.cuh"
#include "sm80_forward_shape.cuh"

namespace attend {

// Range [begin, end) of tiles of kBlockN keys.
struct Sm80KeyTiles {
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ bool has(int n) const { return begin <= n && n < end; }

  // Returns the key tiles that have a key which some row in [first, last) sees. Returns an empty range if these rows do
  // not exist.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80KeyTiles of_rows(const WindowMask& mask, int64 first,
                                                                       int64 last) {
    if (first >= mask.seqlen_q) return {0, 0};
    const KeyRange keys = mask.rows(first, min(last, mask.seqlen_q));
    if (keys.empty()) return {0, 0};
    return {static_cast<int>(keys.begin / Config::kBlockN), static_cast<int>(num_tiles(keys.end, Config::kBlockN))};
  }

  // Returns the key tiles whose keys are all visible to all rows in [first, last). Considers only lengths and window.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80KeyTiles whole_for_rows(const WindowMask& mask, int64 first,
                                                                              int64 last) {
    if (first >= mask.seqlen_q) return {0, 0};
    const int64 begin = mask.row(min(last, mask.seqlen_q) - 1).begin;
    const int64 end = mask.row(first).end;
    return {static_cast<int>(num_tiles(begin, Config::kBlockN)), static_cast<int>(end / Config::kBlockN)};
  }
};

// Returns the last key tile before tile n that some row of the block may see, or a number below `begin` if there is
// none. `row` is the block's first row.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_tile_before(const BlockMap<Config>& map, int64 row, int n,
                                                              int begin) {
  constexpr int kKeys = Config::kBlockN;
  const int64 first = int64{begin} * kKeys;
  const int64 key = map.template last_keys<Config::kBlockM, kKeys>(row, int64{n - 1} * kKeys, first);
  return key < first ? begin - 1 : static_cast<int>(key / kKeys);
}

// The query rows of a block, and its part of the columns of o.
template <class Config>
struct Sm80Work {
  uint32 sequence;
  uint32 head;
  int64 row;  // first row of the tile, as an index in the sequence
  int part;   // index of the part of the columns of o

  // Returns the work of this block. Grid: kColumnParts blocks for each tile of kBlockM rows of each query head of each
  // sequence.
  [[nodiscard]] static __device__ __forceinline__ Sm80Work mine(const ForwardArgs& args) {
    const uint32 block = blockIdx.x / Config::kColumnParts;
    const int part = static_cast<int>(blockIdx.x % Config::kColumnParts);
    const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Sm80Shape<Config>::kBlockM));
    const int64 bytes_per_head = args.seqlen_k * (Config::kHeadDim + Config::kHeadDimV) * kTileElementBytes;
    const HeadTile at = Config::kMask == MaskKind::kCausal
                            ? longest_first(block, row_tiles, args.batch, args.num_heads_q, bytes_per_head)
                            : HeadTile::of_block(block, row_tiles, args.num_heads_q);
    return {at.batch, at.head, at.tile * Sm80Shape<Config>::kBlockM, part};
  }

  [[nodiscard]] __device__ __forceinline__ int first_column_v() const {
    return Config::kColumnParts == 1 ? 0 : part * Sm80Shape<Config>::kColumnsV;
  }
};

// The keys of a block: their address, and the key tiles that some row sees. With a block map, `tiles` ends at the last
// visible tile.
struct Sm80Keys {
  const Bits16* k;  // k of the sequence's first key
  const Bits16* v;  // v of the sequence's first key, at the first column that the block needs
  int64 seqlen;
  Sm80KeyTiles tiles;

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80Keys of(const ForwardOptionArgs& args,
                                                              const Sm80Work<Config>& work, const SequenceSpan& span) {
    const uint32 head = key_head_of(args.base, work.head);
    const WindowMask window = ScoreRules<Config>::window_of(args.options, span);
    Sm80KeyTiles tiles = Sm80KeyTiles::of_rows<Config>(window, work.row, work.row + Config::kBlockM);
    if constexpr (has_block_map<Config>()) {
      const auto map = BlockMap<Config>::of(args.options.block_map, work.sequence, work.head);
      tiles.end = sm80_tile_before(map, work.row, tiles.end, tiles.begin) + 1;
    }
    return {static_cast<const Bits16*>(args.base.k) + span.keys().offset(args.base.k_stride, head, 0),
            static_cast<const Bits16*>(args.base.v) + span.keys().offset(args.base.v_stride, head, 0) +
                work.first_column_v(),
            span.seqlen_k, tiles};
  }
};

// The key tiles that the rows of a warp see.
struct alignas(16) Sm80WarpTiles {
  Sm80KeyTiles seen;   // tiles in which some row of the warp sees some key
  Sm80KeyTiles whole;  // tiles in which all rows of the warp see all keys
};

// State of a thread block. It is in shared memory, because accumulators need the registers.
template <class Config>
struct Sm80Block {
  Sm80Work<Config> work;
  SequenceSpan span;
  ScoreRules<Config> rules;
  Sm80Keys keys;
  float scale_log2;  // factor that turns scores into exponents of 2
  uint32 zero;       // always 0, but the compiler cannot know this
  Sm80WarpTiles own[Config::kWarps];

  // Returns the score modifications for 16 rows of the block and the keys of tile n. The keys start at
  // key `first_key` of the tile.
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> tile_of_group(int first_row, int n,
                                                                           int first_key = 0) const {
    return rules.tile(work.row + first_row, int64{n} * Config::kBlockN + first_key);
  }

  // Sets the state. All threads must call this, and a barrier must follow before `to` is read.
  static __device__ __forceinline__ void make(Sm80Block& to, const ForwardOptionArgs& args,
                                              const Sm80Work<Config>& work, const SequenceSpan& span,
                                              const Sm80Keys& keys) {
    constexpr int kRowsOfWarp = Sm80Shape<Config>::kRowsOfWarp;
    const WindowMask window = ScoreRules<Config>::window_of(args.options, span);
    const uint32 warp = threadIdx.x / 32;
    const int64 own_row = work.row + warp / Config::kSplits * kRowsOfWarp;
    if (threadIdx.x % 32 == 0) {
      to.own[warp] = {Sm80KeyTiles::of_rows<Config>(window, own_row, own_row + kRowsOfWarp),
                      Sm80KeyTiles::whole_for_rows<Config>(window, own_row, own_row + kRowsOfWarp)};
    }
    if (threadIdx.x != 0) return;
    to.work = work;
    to.span = span;
    to.zero = 0;
    to.keys = keys;
    to.rules =
        ScoreRules<Config>::make(args.options, args.base.scale, span, work.sequence, work.head, args.base.num_heads_q);
    to.scale_log2 = fminf(score_scale_log2(to.rules), kLargestFloat);
  }
};

template <class Config>
struct alignas(kSwizzleAtom) Sm80Storage {
  using Shape = Sm80Shape<Config>;
  static constexpr int kWidthQ = Shape::kWidthK > Shape::kWidthV ? Shape::kWidthK : Shape::kWidthV;
  using QTile = PanelTile<Shape::kBlockM, kWidthQ>;
  using KTile = PanelTile<Config::kBlockN, Shape::kWidthK>;
  using VTile = PanelTile<Config::kBlockN, Shape::kWidthV>;
  QTile q_or_o;  // each warp reads only its own rows of q, and overwrites them with o
  struct Stage {
    KTile k;
    VTile v;
  } stage[kSm80Stages];
  Sm80Block<Config> block;
  static_assert(sizeof(Sm80Block<Config>) <= kSm80BlockBytes && kFitsTiles<Config>);
  // m and l of each thread's rows. No other thread accesses them. Used if Config::kParks is set.
  alignas(kSm80BlockBytes) float4 parked[Config::kParks ? Config::kRowGroups * Config::kThreads : 1];
  // Byte offset of `parked`.
  static constexpr int kParkedAt = sizeof(QTile) + kSm80Stages * sizeof(Stage) + kSm80BlockBytes;
  static_assert((kParkedAt - kSm80BlockBytes) % kSm80BlockBytes == 0, "nothing between the tiles and the block");

  // p of tiles n and n + 1. One element is an OperandA of one lane, for 16 keys and 16 rows. Used if kSplits is set.
  static constexpr int kTeams = Config::kWarps / Config::kSplits;  // number of teams; the warps of a team share rows
  static constexpr bool kSplits = Config::kSplits > 1;
  uint4 p[kSplits ? 2 : 1][kSplits ? kTeams : 1][kSplits ? Config::kBlockN / 16 : 1][kSplits ? Config::kRowGroups : 1]
         [kSplits ? 32 : 1];
  float of_rows[kSplits ? Config::kSplits : 1][kSplits ? Shape::kBlockM : 4];  // maxima or sums over each warp's keys

  // Returns the buffer of key tile n.
  [[nodiscard]] __device__ __forceinline__ Stage& stage_of(int n) {
    return stage[static_cast<uint32>(n) % kSm80Stages];
  }
  [[nodiscard]] __device__ __forceinline__ const Stage& stage_of(int n) const {
    return stage[static_cast<uint32>(n) % kSm80Stages];
  }
};

}  // namespace attend
