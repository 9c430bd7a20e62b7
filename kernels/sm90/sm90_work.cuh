// Defines the tiles of query rows, their order, and the key tiles that they see.
#pragma once

#include "../attention/block_mask.cuh"
#include "../attention/key_range.cuh"
#include "../attention/schedule.cuh"
#include "../attention/score_rules.cuh"
#include "../attention/sequence.cuh"
#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/warp_reduce.cuh"
#include "../serving/cache.cuh"
#include "sm90_cached_args.cuh"
#include "sm90_storage.cuh"

namespace attend {

// Range [begin, end) of tiles of kBlockN keys, or of positions in a tile list.
struct Sm90KeyTiles {
  int begin;
  int end;
};

template <class Config>
[[nodiscard]] __device__ __forceinline__ WindowMask sm90_mask(const OptionArgs& options, const Sm90Work& work) {
  return window_of<Config>(work.seqlen_q, work.seqlen_k, options.window_left, options.window_right);
}

// Returns the score modifications for the head of the query tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ ScoreRules<Config> sm90_rules(const Sm90ForwardArgs& args,
                                                                       const Sm90Work& work) {
  return ScoreRules<Config>::make(args.options, args.base.scale, work.template span<Config>(), work.sequence, work.head,
                                  args.base.num_heads_q);
}

// Returns the key tiles that are visible to at least one of the kRows rows from `row` on. If kIsCached is set, `work`
// must be the query tile of these rows.
template <class Config, int kRows>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles key_tiles_of_rows(const WindowMask& mask, const Sm90Work& work,
                                                                        int row) {
  if (row >= mask.seqlen_q) return {0, 0};
  KeyRange keys = mask.rows(row, min(static_cast<int64>(row + kRows), mask.seqlen_q));
  if constexpr (Config::kIsCached) keys.begin = max(keys.begin, static_cast<int64>(work.k_begin));
  if (keys.empty()) return {0, 0};
  constexpr bool kBeginsLate = Config::kMask == MaskKind::kWindow || Config::kIsCached;
  return {kBeginsLate ? static_cast<int>(keys.begin) / Config::kBlockN : 0,
          (static_cast<int>(keys.end) + Config::kBlockN - 1) / Config::kBlockN};
}

// The block mask's list of key tiles for the query rows of a block.
template <class Config>
using Sm90KeyList = KeyTileList<Config, Sm90Shape<Config>::kConsumers>;
template <class Config>
[[nodiscard]] __device__ __forceinline__ Sm90KeyList<Config> sm90_key_list(const Sm90ForwardArgs& args,
                                                                           const Sm90Work& work) {
  return Sm90KeyList<Config>::of(args.options.block_mask, work.sequence, work.head,
                                 work.row / Sm90Shape<Config>::kBlockM);
}

// Returns the list positions of the key tiles that kRows rows from `row` on need. With a block mask these are all
// positions of the block's list, or none if the rows do not exist.
template <class Config, int kRows>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles places_of_rows(const Sm90KeyList<Config>& list,
                                                                     const WindowMask& mask, const Sm90Work& work,
                                                                     int row) {
  if constexpr (!has_block_mask<Config>()) return key_tiles_of_rows<Config, kRows>(mask, work, row);
  return {0, row < work.seqlen_q ? list.count : 0};
}

// Returns the list positions of the block's key tiles. If kSplitsKeys is set, the block processes one part of the key
// tiles. The parts differ by at most one tile, and a part may be empty.
template <class Config>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles places_of_block(const Sm90ForwardArgs& args,
                                                                      const Sm90KeyList<Config>& list,
                                                                      const WindowMask& mask, const Sm90Work& work) {
  const Sm90KeyTiles all = places_of_rows<Config, Sm90Shape<Config>::kBlockM>(list, mask, work, work.row);
  if constexpr (!Config::kSplitsKeys) return all;
  const int64 tiles = all.end - all.begin;
  const int64 splits = args.splits;
  return {all.begin + static_cast<int>(tiles * work.batch / splits),
          all.begin + static_cast<int>(tiles * (work.batch + 1) / splits)};
}

// Returns the list positions of the key tiles of the warpgroup whose first row is `row`.
template <class Config>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles places_of_warpgroup(const Sm90KeyTiles& of_block,
                                                                          const Sm90KeyList<Config>& list,
                                                                          const WindowMask& mask, const Sm90Work& work,
                                                                          int row) {
  const Sm90KeyTiles seen = places_of_rows<Config, kWarpgroupRows>(list, mask, work, row);
  if constexpr (!Config::kSplitsKeys) return seen;
  return {max(seen.begin, of_block.begin), min(seen.end, of_block.end)};
}

// Returns the key tiles in which each of the kRows rows from `row` on sees each key.
template <class Config, int kRows>
[[nodiscard]] __device__ __forceinline__ Sm90KeyTiles unmasked_tiles_of_rows(const WindowMask& mask, int row) {
  const int64 last_row = min(static_cast<int64>(row + kRows), mask.seqlen_q) - 1;
  return {(static_cast<int>(mask.row(last_row).begin) + Config::kBlockN - 1) / Config::kBlockN,
          static_cast<int>(mask.row(row).end) / Config::kBlockN};
}

// Returns the position of a sequence in the tensors. If kIsCached is set, k_begin is the first visible key, and
// seqlen_q is 0 if another kernel handles the sequence.
template <class Config>
[[nodiscard]] __device__ __forceinline__ SequenceSpan sm90_span(const Sm90ForwardArgs& forward_args, uint32 sequence) {
  if constexpr (Config::kIsCached) {
    const auto& args = static_cast<const Sm90CachedArgs&>(forward_args);
    const CachedSequence in_cache = cached(args.cache, sequence);
    SequenceSpan span = {sequence, 0, first_key(args.cache, sequence), args.base.seqlen_q, in_cache.length};
    if (args.options.cu_seqlens_q != nullptr) {
      const int* cu_q = args.options.cu_seqlens_q + sequence;
      const PackedTokens q = PackedTokens::of(cu_q[0], cu_q[1], args.options.total_q, kFar);
      span.batch = 0;
      span.q_begin = q.begin;
      span.seqlen_q = q.length;
    }
    if (in_cache.dead || span.seqlen_q < args.least_rows) span.seqlen_q = 0;
    return span;
  } else {
    return sequence_span<Config>(forward_args.base, forward_args.options, sequence);
  }
}

// Iterates over the query tiles of a block. One warp uses it, and all lanes hold the same values.
template <class Config>
class Sm90TileWalk {
  static constexpr int kBlockM = Sm90Shape<Config>::kBlockM;

 public:
  __device__ __forceinline__ explicit Sm90TileWalk(const Sm90ForwardArgs& args) : args_(args) {
    if constexpr (Config::kIsVarlen) look_at_sequences();
  }

  // Returns the current query tile. At the end, its `sequence` is kNoWork.
  [[nodiscard]] __device__ __forceinline__ Sm90Work tile() {
    if constexpr (Config::kIsVarlen) {
      return packed_tile();
    } else {
      return dense_tile();
    }
  }

  // take() requests the next query tile early, and advance() moves to that tile.
  __device__ __forceinline__ void take() { queue_.take(args_.next_tile); }
  __device__ __forceinline__ void advance() { queue_.advance(); }

 private:
  // Tiles of a head are adjacent in this order, so that they share its keys in the L2 cache. Under a causal mask tiles
  // differ in length, so the longest tiles of all heads of a section come first. Under a block mask tiles may also
  // differ in length. The last rows often see the most keys, so the order is the same.
  [[nodiscard]] __device__ __forceinline__ Sm90Work dense_tile() const {
    if (queue_.index() >= args_.total_tiles) return {Sm90Work::kNoWork};
    const uint32 index = Config::kSplitsKeys ? queue_.index() / args_.splits : queue_.index();
    const int split = Config::kSplitsKeys ? static_cast<int>(queue_.index() % args_.splits) : 0;
    const HeadTile at =
        Config::kMask == MaskKind::kCausal || has_block_mask<Config>()
            ? longest_first_in_sections(index, args_.row_tiles, args_.base.batch * args_.base.num_heads_q,
                                        args_.base.num_heads_q, args_.section_heads)
            : HeadTile::of_block(index, args_.row_tiles, args_.base.num_heads_q);
    return {static_cast<int>(at.batch),
            static_cast<int>(at.head),
            static_cast<int>(at.tile) * kBlockM,
            0,
            0,
            static_cast<int>(args_.base.seqlen_q),
            static_cast<int>(args_.base.seqlen_k),
            split};
  }

  // Returns the query tile at the queue's index. Tiles are ordered by sequence and then by head. The search only moves
  // forward, and each lane checks one of 32 sequences.
  [[nodiscard]] __device__ __forceinline__ Sm90Work packed_tile() {
    while (queue_.index() >= first_index_ + __shfl_sync(kAllLanes, tiles_until_, 31)) {
      first_index_ += __shfl_sync(kAllLanes, tiles_until_, 31);
      first_sequence_ += 32;
      if (first_sequence_ >= args_.base.batch) return {Sm90Work::kNoWork};
      look_at_sequences();
    }
    const uint32 rest = queue_.index() - first_index_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, rest < tiles_until_))) - 1;
    const uint32 sequence = first_sequence_ + lane;
    const SequenceSpan span = sm90_span<Config>(args_, sequence);
    const auto tiles = static_cast<uint32>(num_tiles(span.seqlen_q, kBlockM));
    const uint32 of_sequence = rest - (__shfl_sync(kAllLanes, tiles_until_, lane) - tiles * args_.base.num_heads_q);
    const uint32 head = of_sequence / tiles;
    const uint32 tile = tiles - 1 - (of_sequence - head * tiles);  // the last tile comes first, because it often is the
                                                                   // longest
    return {static_cast<int>(sequence),      static_cast<int>(head),         static_cast<int>(tile) * kBlockM,
            static_cast<int>(span.q_begin),  static_cast<int>(span.k_begin), static_cast<int>(span.seqlen_q),
            static_cast<int>(span.seqlen_k), static_cast<int>(span.batch)};
  }

  // Computes tiles_until_ for the 32 sequences from first_sequence_ on.
  __device__ __forceinline__ void look_at_sequences() {
    const uint32 lane = threadIdx.x % 32;
    const uint32 sequence = first_sequence_ + lane;
    tiles_until_ = 0;
    if (sequence < args_.base.batch) {
      const SequenceSpan span = sm90_span<Config>(args_, sequence);
      tiles_until_ = static_cast<uint32>(num_tiles(span.seqlen_q, kBlockM)) * args_.base.num_heads_q;
    }
#pragma unroll
    for (uint32 distance = 1; distance < 32; distance *= 2) {
      const uint32 before = __shfl_up_sync(kAllLanes, tiles_until_, distance);
      if (lane >= distance) tiles_until_ += before;
    }
  }

  const Sm90ForwardArgs& args_;
  TileQueue<Config::kSchedule> queue_;
  uint32 first_sequence_ = 0;  // sequence that lane 0 checks, used for packed sequences
  uint32 first_index_ = 0;     // index of the first tile of that sequence
  uint32 tiles_until_ = 0;     // number of query tiles of all heads of the sequences from first_sequence_ up to and
                               // including this lane's
};

}  // namespace attend
