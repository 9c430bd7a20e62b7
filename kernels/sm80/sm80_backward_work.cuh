// The work of a thread block of sm80_backward: its owned tile of keys or query rows, and the range over which it
// iterates.
//
// The tensors form two pairs: k and v, and q and dout. A block owns a tile of one pair and iterates over tiles of the
// other pair, the streamed tiles. It owns keys if it computes dk or dv, and query rows otherwise.
// simt/backward_tile.cuh divides the work in the same way.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/key_range.cuh"
#include "../attention/score_rules.cuh"
#include "../attention/sequence.cuh"
#include "../attention/work.cuh"
#include "sm80_backward_shape.cuh"

namespace attend {

// Range [begin, end) of rows or keys of a sequence.
struct Sm80Range {
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ bool meets(int first, int count) const {
    return begin < first + count && first < end;
  }

  // Returns the range of streamed rows or keys with a visible score. The score must belong to at least one of the owned
  // keys or rows [first, last). The range is empty if these do not exist.
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

  // Returns the range of streamed rows or keys whose scores are all visible. These are the scores for all of the owned
  // keys or rows [first, last). If the range includes the last existing row or key, the returned range has no end. The
  // places after that row or key hold zeros, which need no mask.
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

// The tile that a block owns.
struct Sm80BackwardWork {
  uint32 sequence;
  uint32 head;  // KV head if the block owns keys, otherwise query head
  int64 owned;  // first row or key of the tile, as an index in the sequence

  // Returns the work of this block. Grid: one block for each tile of each head of each sequence. Under a causal mask
  // the first keys and the last rows take longest, so their blocks start first.
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
    const HeadTile at = longest_first(blockIdx.x, tiles, args.batch, heads,
                                      streamed * (Config::kHeadDim + Config::kHeadDimV) * kTileElementBytes);
    return {at.batch, at.head, (kOwnsKeys ? tiles - 1 - at.tile : at.tile) * kOwned};
  }
};

// A warp's position among the tiles that a block map does not skip. The two buffers alternate, so a tile's buffer does
// not depend on its number.
struct Sm80Walk {
  int buffer;  // buffer of the current tile
  int next;    // first row or key of the next tile
};

// State of a block for one query head. It is in shared memory, because accumulators need the registers.
template <class Config>
struct Sm80BackwardBlock {
  static constexpr int kKeyWarps = Sm80BackwardShape<Config>::kKeyWarps;
  Sm80BackwardWork work;
  SequenceSpan span;
  uint32 head;                 // query head
  Sm80Range streamed;          // rows or keys that have a visible score with the owned tile
  Sm80Range own[kKeyWarps];    // for each warp: rows or keys that have some visible score with the warp's part of the
                               // owned tile
  Sm80Range whole[kKeyWarps];  // for each warp: rows or keys that have no masked score with the warp's part of the
                               // owned tile
  ScoreRules<Config> rules;
  Sm80Walk walk[has_block_map<Config>() ? kKeyWarps : 1];  // one for each warp

  // Returns the first tile of kStreamed rows or keys, from `from` on, that has a visible score with the owned tile
  // according to the block map. If there is none, returns the end of the range or a larger number. All lanes of a warp
  // must call this.
  [[nodiscard]] __device__ __forceinline__ int next_tile(int from) const {
    using Shape = Sm80BackwardShape<Config>;
    constexpr int kTile = Config::kStreamed;
    return static_cast<int>(Shape::kOwnsKeys
                                ? rules.map.template next_rows<kTile, Shape::kOwned>(from, work.owned, streamed.end)
                                : rules.map.template next_keys<Shape::kOwned, kTile>(work.owned, from, streamed.end));
  }
  // Returns whether the warp's part of the owned tile has a visible score with the kStep streamed rows or keys from
  // `from` on. The warp's part begins at `first_owned` of the owned tile.
  [[nodiscard]] __device__ __forceinline__ bool meets(int warp, int first_owned, int from) const {
    using Shape = Sm80BackwardShape<Config>;
    constexpr int kOwned = Shape::kOwnedOfWarp, kStep = Config::kStep;
    if (!own[warp].meets(from, kStep)) return false;
    if constexpr (Shape::kOwnsKeys) return rules.map.template sees_any<kStep, kOwned>(from, work.owned + first_owned);
    return rules.map.template sees_any<kOwned, kStep>(work.owned + first_owned, from);
  }

  // Sets the state. All threads must call this, and a barrier must follow before `to` is read.
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

  // Changes to another query head of the same sequence. Only one thread calls this, and a barrier must follow.
  static __device__ __forceinline__ void set_head(Sm80BackwardBlock& to, const BackwardOptionArgs& args, uint32 head) {
    to.head = head;
    to.rules =
        ScoreRules<Config>::make(args.options, args.base.scale, to.span, to.work.sequence, head, args.base.num_heads_q);
  }
};

}  // namespace attend
