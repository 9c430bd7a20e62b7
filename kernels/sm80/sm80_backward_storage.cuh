// A block of sm80_backward: what it works on, its shared memory, and the tiles that it brings there.
//
// The tensors come in pairs: k and v, q and dout. A block owns a tile of one pair and streams over tiles of the other:
// it owns keys where their gradients are wanted, else query rows (simt/backward_tile.cuh is of the same kind).
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/lse_rounding.cuh"
#include "../attention/saved_row.cuh"
#include "../attention/score_rules.cuh"
#include "../attention/sequence.cuh"
#include "../attention/work.cuh"
#include "../tiles/smem_tile.cuh"
#include "sm80_backward_shape.cuh"
#include "sm80_pieces.cuh"

namespace attend {

// Rows or keys [begin, end) of a sequence.
struct Sm80Range {
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ bool meets(int first, int count) const {
    return begin < first + count && first < end;
  }

  // The streamed ones that have a score with one of the owned [first, last). None for those that do not exist.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80Range of_owned(const WindowMask& mask, int64 first, int64 last) {
    constexpr bool kOwnsKeys = Sm80BackwardShape<Config>::kOwnsKeys;
    const int64 length = kOwnsKeys ? mask.seqlen_k : mask.seqlen_q;
    if (first >= length) return {0, 0};
    const int64 end = min(last, length);
    const KeyRange range = kOwnsKeys ? mask.rows_of_keys(first, end) : mask.rows(first, end);
    if (range.empty()) return {0, 0};
    return {static_cast<int>(range.begin), static_cast<int>(range.end)};
  }

  // Those that have one with each of them; and what lies beyond the last one that exists.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80Range whole_of_owned(const WindowMask& mask, int64 first,
                                                                           int64 last) {
    constexpr bool kOwnsKeys = Sm80BackwardShape<Config>::kOwnsKeys;
    if (last > (kOwnsKeys ? mask.seqlen_k : mask.seqlen_q)) return {0, 0};
    const KeyRange of_first = kOwnsKeys ? mask.rows_of_key(first) : mask.row(first);
    const KeyRange of_last = kOwnsKeys ? mask.rows_of_key(last - 1) : mask.row(last - 1);
    const int64 end = min(of_first.end, of_last.end);
    const bool is_open = end == (kOwnsKeys ? mask.seqlen_q : mask.seqlen_k);
    return {static_cast<int>(max(of_first.begin, of_last.begin)), is_open ? kNoEnd : static_cast<int>(end)};
  }

  [[nodiscard]] __device__ __forceinline__ bool has(int first, int count) const {
    return begin <= first && first + count <= end;
  }

 private:
  static constexpr int kNoEnd = 0x7fffffff;
};

// What a block owns.
struct Sm80BackwardWork {
  uint32 sequence;
  uint32 head;  // of k where it owns keys, else of q
  int64 owned;  // of the sequence, the tile's first

  // Grid: tiles of every head of every sequence. Under a causal mask the first keys and the last rows have most to do.
  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ Sm80BackwardWork mine(const BackwardArgs& args) {
    constexpr bool kOwnsKeys = Sm80BackwardShape<Config>::kOwnsKeys;
    constexpr int kOwned = Sm80BackwardShape<Config>::kOwned;
    const auto tiles = static_cast<uint32>(num_tiles(kOwnsKeys ? args.seqlen_k : args.seqlen_q, kOwned));
    const uint32 heads = kOwnsKeys ? args.num_heads_k : args.num_heads_q;
    if constexpr (Config::kMask != MaskKind::kCausal) {
      const HeadTile at = HeadTile::of_block(blockIdx.x, tiles, heads);
      return {at.batch, at.head, at.tile * kOwned};
    }
    const int64 streamed = kOwnsKeys ? args.seqlen_q * (args.num_heads_q / args.num_heads_k) : args.seqlen_k;
    const HeadTile at =
        longest_first(blockIdx.x, tiles, args.batch, heads, streamed * (Config::kHeadDim + Config::kHeadDimV) * 2);
    return {at.batch, at.head, (kOwnsKeys ? tiles - 1 - at.tile : at.tile) * kOwned};
  }
};

// What a block knows of one query head, kept in shared memory: accumulators leave no registers for it.
template <class Config>
struct Sm80BackwardBlock {
  static constexpr int kKeyWarps = Sm80BackwardShape<Config>::kKeyWarps;
  Sm80BackwardWork work;
  SequenceSpan span;
  uint32 head;                 // of q
  Sm80Range streamed;          // that meets the owned tile
  Sm80Range own[kKeyWarps];    // that meets what the warp owns of it
  Sm80Range whole[kKeyWarps];  // of which no score with what the warp owns is masked
  ScoreRules<Config> rules;

  // By all threads. Another barrier has to pass before `to` is read.
  static __device__ __forceinline__ void make(Sm80BackwardBlock& to, const BackwardOptionArgs& args,
                                              const Sm80BackwardWork& work, const SequenceSpan& span, uint32 head) {
    using Shape = Sm80BackwardShape<Config>;
    const WindowMask window = ScoreRules<Config>::window_of(args.options, span);
    const uint32 warp = threadIdx.x / 32;
    const int64 own = work.owned + warp * Shape::kOwnedOfWarp;
    if (threadIdx.x % 32 == 0 && warp < kKeyWarps) {
      to.own[warp] = Sm80Range::of_owned<Config>(window, own, own + Shape::kOwnedOfWarp);
      to.whole[warp] = Sm80Range::whole_of_owned<Config>(window, own, own + Shape::kOwnedOfWarp);
    }
    if (threadIdx.x != 0) return;
    to.work = work;
    to.span = span;
    to.streamed = Sm80Range::of_owned<Config>(window, work.owned, work.owned + Shape::kOwned);
    set_head(to, args, head);
  }

  // Another query head of the same sequence. By one thread, likewise.
  static __device__ __forceinline__ void set_head(Sm80BackwardBlock& to, const BackwardOptionArgs& args, uint32 head) {
    to.head = head;
    to.rules =
        ScoreRules<Config>::make(args.options, args.base.scale, to.span, to.work.sequence, head, args.base.num_heads_q);
  }
};

// Where ds of all warps meets, for dq: a row for each key, kStreamed query rows. Nothing where no dq is added.
template <class Config, bool kIsThere>
struct Sm80ScoresPlace {
  using Tile = PanelTile<Sm80BackwardShape<Config>::kOwned, kPanelColumns>;
  Tile tile[sm80_score_tiles(true, Config::kRoles, Config::kParts)];
};
template <class Config>
struct Sm80ScoresPlace<Config, false> {
  using Tile = void;
};

// p in float, from one half of the threads to the other: of each lane what it has, as it has it.
template <class Config, bool kIsThere>
struct Sm80SharedP {
  static constexpr int kThreads = Config::kThreads / 2;
  float4 four[Sm80BackwardShape<Config>::kOwned * Config::kStreamed / 4 / kThreads][kThreads];
};
template <class Config>
struct Sm80SharedP<Config, false> {};

// lse_log2_sum() of the query rows, like lse. Nothing where rows have none.
template <int kRows, bool kIsThere>
struct Sm80Log2Sums {
  alignas(8) float of_row[kRows];
};
template <int kRows>
struct Sm80Log2Sums<kRows, false> {};

template <class Config>
struct alignas(kSwizzleAtom) Sm80BackwardStorage {
  using Shape = Sm80BackwardShape<Config>;
  using OwnedTile = PanelTile<Shape::kOwned, Shape::kWidth>;
  using OwnedTileV = PanelTile<Shape::kOwned, Shape::kWidthV>;
  using StreamedTile = PanelTile<Config::kStreamed, Shape::kWidth>;
  using StreamedTileV = PanelTile<Config::kStreamed, Shape::kWidthV>;
  OwnedTile owned;     // of k or q. A warp reads no rows but its own, and writes their dk or dq over them
  OwnedTileV owned_v;  // of v or dout; then dv
  struct {
    StreamedTile rows;
    StreamedTileV rows_v;
  } stage[Shape::kStages];
  using ScoresPlace = Sm80ScoresPlace<Config, Config::kAddsDq>;
  using ScoreTile = typename ScoresPlace::Tile;
  static_assert(!Config::kAddsDq || Config::kStreamed <= kPanelColumns);
  ScoresPlace scores;
  Sm80SharedP<Config, Config::kRoles == 2> p;
  alignas(8) float lse[Shape::kSavedRows];  // of the query rows, owned or in the buffers; lanes read pairs
  alignas(8) float delta[Shape::kSavedRows];
  Sm80Log2Sums<Shape::kSavedRows, Config::kHasLseRounding> log2_sums;
  Sm80BackwardBlock<Config> block;
  static_assert(sizeof(Sm80BackwardBlock<Config>) <= kSm80BlockBytes);
};

// One tensor of a pair, as blocks bring it.
struct Sm80Source {
  const Bits16* first;
  int64 row_stride;  // elements

  // Rows of k, or where kValues of v, from row `row` of the sequence on; of q and dout where kOfKeys is false.
  template <bool kOfKeys, bool kValues>
  [[nodiscard]] static __device__ __forceinline__ Sm80Source of(const BackwardArgs& args, const SequenceSpan& span,
                                                                uint32 head, int64 row) {
    const void* tensor = kOfKeys ? (kValues ? args.v : args.k) : (kValues ? args.dout : args.q);
    const TensorStrides& stride =
        kOfKeys ? (kValues ? args.v_stride : args.k_stride) : (kValues ? args.dout_stride : args.q_stride);
    const uint32 its_head = kOfKeys ? key_head_of(args, head) : head;
    return {static_cast<const Bits16*>(tensor) +
                stride.offset(span.batch, its_head, (kOfKeys ? span.k_begin : span.q_begin) + row),
            stride.row};
  }
};

template <class Config, class Tile>
using Sm80Loader = PieceLoader<Config::kThreads, Config::kCopyBytes, Tile>;

// The rows from `row` on, as many as the tile has and the sequence.
template <class Config, bool kOfKeys, bool kValues, class Tile>
__device__ __forceinline__ void sm80_load_tile(Tile& tile, const BackwardArgs& args, const SequenceSpan& span,
                                               uint32 head, int64 row) {
  const auto source = Sm80Source::of<kOfKeys, kValues>(args, span, head, row);
  Sm80Loader<Config, Tile> loader(source.first, source.row_stride);
  const int64 left = (kOfKeys ? span.seqlen_k : span.seqlen_q) - row;
  loader.load(tile, source.row_stride, static_cast<int>(min(left, int64{Tile::kRows})),
              kValues ? Config::kHeadDimV : Config::kHeadDim);
}

// lse and delta of kRows query rows from `row` of the sequence on, to place `at`.
template <class Config, int kRows>
__device__ __forceinline__ void sm80_load_statistics(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                     const SequenceSpan& span, uint32 head, int64 row, int at) {
  static_assert(kRows <= Config::kThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  const bool exists = row + i < span.seqlen_q;
  const SavedRow* saved = saved_rows(args, span, head) + row + i;
  cp_async_4(smem_address(&smem.lse[at + i]), &saved->lse, exists);
  cp_async_4(smem_address(&smem.delta[at + i]), &saved->delta, exists);
  if constexpr (Config::kHasLseRounding) {
    cp_async_4(smem_address(&smem.log2_sums.of_row[at + i]), &saved->log2_sum, exists);
  }
}

// The owned tiles of the pair; without v where its products are not wanted. head: of q.
template <class Config>
__device__ __forceinline__ void sm80_load_owned(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                const SequenceSpan& span, uint32 head, int64 owned) {
  using Shape = Sm80BackwardShape<Config>;
  sm80_load_tile<Config, Shape::kOwnsKeys, false>(smem.owned, args.base, span, head, owned);
  if constexpr (Shape::kHasDs) {
    sm80_load_tile<Config, Shape::kOwnsKeys, true>(smem.owned_v, args.base, span, head, owned);
  }
  if constexpr (!Shape::kOwnsKeys) sm80_load_statistics<Config, Shape::kOwned>(smem, args, span, head, owned, 0);
}

// The buffer that holds row or key `streamed` of the sequence.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_buffer(int streamed) {
  return streamed / Config::kStreamed % Sm80BackwardShape<Config>::kStages;
}

// Sends for the tile of the block's query head that begins with `streamed`. Addresses are computed anew for each tile:
// between them they would take registers from the sums.
template <class Config>
__device__ __forceinline__ void sm80_send_streamed(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                   int streamed) {
  constexpr bool kOfKeys = !Sm80BackwardShape<Config>::kOwnsKeys;
  const SequenceSpan& span = smem.block.span;
  const uint32 head = smem.block.head;
  const int at = sm80_buffer<Config>(streamed);
  sm80_load_tile<Config, kOfKeys, false>(smem.stage[at].rows, args.base, span, head, streamed);
  sm80_load_tile<Config, kOfKeys, true>(smem.stage[at].rows_v, args.base, span, head, streamed);
  if constexpr (!kOfKeys) {
    sm80_load_statistics<Config, Config::kStreamed>(smem, args, span, head, streamed, at * Config::kStreamed);
  }
}

}  // namespace attend
