// A block of sm80_forward: its work and its shared memory.
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

// Tiles of kBlockN keys, [begin, end).
struct Sm80KeyTiles {
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ bool has(int n) const { return begin <= n && n < end; }

  // Returns the tiles with a key that one of the sequence's rows [first, last) sees. If the rows do not exist, there
  // are none.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80KeyTiles of_rows(const WindowMask& mask, int64 first,
                                                                       int64 last) {
    if (first >= mask.seqlen_q) return {0, 0};
    const KeyRange keys = mask.rows(first, min(last, mask.seqlen_q));
    if (keys.empty()) return {0, 0};
    return {static_cast<int>(keys.begin / Config::kBlockN), static_cast<int>(num_tiles(keys.end, Config::kBlockN))};
  }

  // Returns the tiles whose keys are all visible to all of these rows, by lengths and window.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80KeyTiles whole_for_rows(const WindowMask& mask, int64 first,
                                                                              int64 last) {
    if (first >= mask.seqlen_q) return {0, 0};
    const int64 begin = mask.row(min(last, mask.seqlen_q) - 1).begin;
    const int64 end = mask.row(first).end;
    return {static_cast<int>(num_tiles(begin, Config::kBlockN)), static_cast<int>(end / Config::kBlockN)};
  }
};

// Returns the last key tile before tile n that some row of the block may see, or less than `begin` if there is none.
// The block begins with row `row`.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_tile_before(const BlockMap<Config>& map, int64 row, int n,
                                                              int begin) {
  constexpr int kKeys = Config::kBlockN;
  const int64 first = int64{begin} * kKeys;
  const int64 key = map.template last_keys<Config::kBlockM, kKeys>(row, int64{n - 1} * kKeys, first);
  return key < first ? begin - 1 : static_cast<int>(key / kKeys);
}

// The query rows of a block.
template <class Config>
struct Sm80Work {
  uint32 sequence;
  uint32 head;
  int64 row;  // the tile's first row, in the sequence
  int part;   // which part of the columns of o

  // Returns the work of this block. Grid: tiles of kBlockM rows of every query head of every sequence, times
  // kColumnParts.
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

// The keys of a block: their place in memory, and the tiles that some row sees. With a block map the range ends at the
// last visible tile.
struct Sm80Keys {
  const Bits16* k;  // address of the sequence's first key
  const Bits16* v;  // address of the sequence's first key, at the block's first column
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

// The tiles that a warp's rows see.
struct alignas(16) Sm80WarpTiles {
  Sm80KeyTiles seen;   // visible to some row
  Sm80KeyTiles whole;  // fully visible to all rows
};

// The state of a block. It is in shared memory, because accumulators need the registers.
template <class Config>
struct Sm80Block {
  Sm80Work<Config> work;
  SequenceSpan span;
  ScoreRules<Config> rules;
  Sm80Keys keys;
  float scale_log2;  // factor that turns scores into exponents of 2
  uint32 zero;       // 0, which the compiler cannot assume to be constant
  Sm80WarpTiles own[Config::kWarps];

  // Returns the rules for 16 of the block's rows, and for the keys of tile n from first_key on.
  [[nodiscard]] __device__ __forceinline__ TileRules<Config> tile_of_group(int first_row, int n,
                                                                           int first_key = 0) const {
    return rules.tile(work.row + first_row, int64{n} * Config::kBlockN + first_key);
  }

  // Sets the state. All threads call it. A barrier must follow before `to` is read.
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
  QTile q_or_o;  // a warp reads only its own rows of q, and overwrites them with o
  struct Stage {
    KTile k;
    VTile v;
  } stage[kSm80Stages];
  Sm80Block<Config> block;
  static_assert(sizeof(Sm80Block<Config>) <= kSm80BlockBytes && kFitsTiles<Config>);
  // Config::kParks: m and l of each thread's rows. No other thread accesses them.
  alignas(kSm80BlockBytes) float4 parked[Config::kParks ? Config::kRowGroups * Config::kThreads : 1];
  static constexpr int kParkedAt = sizeof(QTile) + kSm80Stages * sizeof(Stage) + kSm80BlockBytes;  // offset in bytes
  static_assert((kParkedAt - kSm80BlockBytes) % kSm80BlockBytes == 0, "nothing between the tiles and the block");

  // With kSplits: p of 16 keys of 16 rows, an OperandA of each lane, for tiles n and n + 1.
  static constexpr int kTeams = Config::kWarps / Config::kSplits;  // teams of warps that share rows
  static constexpr bool kSplits = Config::kSplits > 1;
  uint4 p[kSplits ? 2 : 1][kSplits ? kTeams : 1][kSplits ? Config::kBlockN / 16 : 1][kSplits ? Config::kRowGroups : 1]
         [kSplits ? 32 : 1];
  float of_rows[kSplits ? Config::kSplits : 1][kSplits ? Shape::kBlockM : 4];  // maxima or sums over each warp's keys

  // Returns the buffer of tile n.
  [[nodiscard]] __device__ __forceinline__ Stage& stage_of(int n) {
    return stage[static_cast<uint32>(n) % kSm80Stages];
  }
  [[nodiscard]] __device__ __forceinline__ const Stage& stage_of(int n) const {
    return stage[static_cast<uint32>(n) % kSm80Stages];
  }
};

}  // namespace attend
