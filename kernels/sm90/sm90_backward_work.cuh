// Defines the work of a thread block in the sm90 backward pass. Each work item is a key block of one KV head, together
// with the query tiles that see it.
//
// A key block has one step for each query tile of each query head that shares its KV head. The steps proceed head by
// head. dk and dv stay in registers for all heads of the group. If kAddsUp is set, the steps are the tiles of only one
// query head, and dk and dv are summed in memory. Then all key blocks process the same query head at about the same
// time, and they find its rows in the L2 cache.
//
// If all key blocks have the same number of steps, each thread block has a fixed list of items. The steps of the last
// items are divided evenly among all thread blocks, so some items are split in two. The thread block with the later
// steps of such an item writes float sums, and the thread block with its first steps adds them.
//
// If key blocks have different numbers of steps, each thread block takes the next key block when it has finished one.
// The longest key blocks come first. If additions to dq have a fixed order, the list has the same order
// (Sm90BackwardOrder). If kOwnsHeads is set, a thread block processes all key blocks of every n-th head, where n is the
// grid size.
#pragma once

#include "../attention/block_mask.cuh"
#include "../attention/key_range.cuh"
#include "../attention/mask_window.cuh"
#include "../attention/schedule.cuh"
#include "../attention/sequence.cuh"
#include "../common/config_enums.cuh"
#include "sm90_backward_args.cuh"
#include "sm90_backward_layout.cuh"
#include "sm90_backward_schedule.cuh"
#include "sm90_backward_workspace.cuh"

namespace attend {

template <class Config>
constexpr Sm90BackwardTile kBackwardTile = sm90_backward_tile(Config::kHeadDim, Config::kHeadDimV,
                                                              Score<Config>::kTileTraits, Config::kDtermsBlocks,
                                                              Config::kOwnsHeads || Config::kIsPersistent);

// Whether the row statistics hold lse instead of lse_log2. The kernels then sum rows with a coarse lse again
// (lse_rounding.cuh).
template <class Config>
constexpr bool kSumsRows = Score<Config>::kAddsFromMemory || Score<Config>::kMayBeLowest;

constexpr int kNearlyEverywhere = 1 << 30;  // larger than every row index and key index

// Returns the first padded row of a sequence in the statistics of one head.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int64 backward_stats_begin(const SequenceSpan& span, uint32 sequence) {
  return Config::kIsVarlen ? sm90_backward_first_row(span.q_begin, sequence) : 0;
}

// Returns the position of row % 16 among 16 row statistics. Lane q of a quad holds columns 2 q, 2 q + 1, 2 q + 8 and 2
// q + 9 of each 16 columns of an accumulator. In this order one 16-byte load reads the lane's four statistics.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int sm90_backward_stats_place(int row) {
  return row % 16 % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
}

// Bounds of the mask window as ints. A row sees keys from row + offset - left to row + offset + right, where offset is
// seqlen_k - seqlen_q.
struct BackwardBand {
  int left;
  int right;

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardBand of(const OptionArgs& options) {
    const auto bounded = [](int64 window) {
      return window < 0 || window > kNearlyEverywhere ? kNearlyEverywhere : static_cast<int>(window);
    };
    const WindowMask window = window_of<Config>(0, 0, options.window_left, options.window_right);
    return {bounded(window.window_left), bounded(window.window_right)};
  }
};

// A work item: a key block, or some consecutive steps of it. Step s processes tile first_tile + s % tiles of query head
// `head` + s / tiles.
struct alignas(16) Sm90BackwardItem {
  int key;  // first key, as an index in the sequence; -1 if there are no more items
  int head_k;
  int batch;
  int first_tile;   // first query tile that sees the key block; with a block mask, an index into its lists
  int tiles;        // number of query tiles per query head
  int begin;        // first step of the item
  int end;          // end of the steps. If begin == end, no row sees the key block, so dk and dv are 0
  int partial_out;  // slot in memory to which the sums of this item are written; -1 if the item writes dk and dv
  int partial_in;   // slot with the sums of the item's later steps, which are added to these sums; -1 if there are none
  int seqlen_q;
  int seqlen_k;
  int q_begin;  // position of the sequence's first row in q
  int k_begin;  // position of the sequence's first row in k
  int stats_begin;
  int sequence;
  int head;  // first query head

  [[nodiscard]] __device__ __forceinline__ bool is_end() const { return key < 0; }
  [[nodiscard]] __device__ __forceinline__ int offset() const { return seqlen_k - seqlen_q; }

  // Returns the position of the sequence in the tensors.
  [[nodiscard]] __device__ __forceinline__ SequenceSpan span() const {
    return {static_cast<uint32>(batch), q_begin, k_begin, seqlen_q, seqlen_k};
  }

  // Returns whether no row of the query tile sees any of the warpgroup's 64 keys, because the windows of all rows end
  // before these keys.
  [[nodiscard]] __device__ __forceinline__ bool is_above_band(const BackwardBand& band, int tile, int warpgroup) const {
    return key + warpgroup * 64 > (tile + 1) * kBackwardRows - 1 + offset() + band.right;
  }
};
static_assert(sizeof(Sm90BackwardItem) == kBackwardItemBytes);

// Returns the block mask's lists of query tiles, one list per key block. With a block mask, the tiles of a
// BackwardSegment are indices into these lists.
template <class Config>
[[nodiscard]] __device__ __forceinline__ RowTileLists<Config> backward_row_lists(const Sm90BackwardArgs& args) {
  return {args.options.block_mask};
}

// Writes the item with all steps of key block `index` of the launch. Returns false if the sequence ends before that key
// block.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool make_item(Sm90BackwardItem& item, const Sm90BackwardArgs& args,
                                                        uint32 index) {
  const uint32 group = args.base.num_heads_q / args.base.num_heads_k;
  const uint32 heads_of_sequence = Config::kAddsUp ? args.base.num_heads_q : args.base.num_heads_k;
  const uint32 heads = args.base.batch * heads_of_sequence;
  const auto [sequence, head_of_sequence, tile] =
      in_sections(index, args.key_blocks, heads, heads_of_sequence, args.section_heads);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, sequence);
  const auto place = static_cast<int>(tile);
  if (int64{place} * Config::kBlockN >= span.seqlen_k) return false;
  const auto blocks = static_cast<int>(num_tiles(span.seqlen_k, Config::kBlockN));
  const int block = Config::kIsDeterministic
                        ? Sm90BackwardOrder::of(blocks, kBackwardTile<Config>.is_persistent).block_at(place)
                        : place;
  const int key = block * Config::kBlockN;
  item.key = key;
  item.head_k = static_cast<int>(Config::kAddsUp ? head_of_sequence / group : head_of_sequence);
  item.head = static_cast<int>(Config::kAddsUp ? head_of_sequence : head_of_sequence * group);
  item.batch = static_cast<int>(span.batch);
  item.sequence = static_cast<int>(sequence);
  item.seqlen_q = static_cast<int>(span.seqlen_q);
  item.seqlen_k = static_cast<int>(span.seqlen_k);
  item.q_begin = static_cast<int>(span.q_begin);
  item.k_begin = static_cast<int>(span.k_begin);
  item.stats_begin = static_cast<int>(backward_stats_begin<Config>(span, sequence));
  if constexpr (has_block_mask<Config>()) {
    const auto places = backward_row_lists<Config>(args).of(item.sequence, item.head_k, block);
    item.first_tile = places.first;
    item.tiles = places.count;
  } else {
    const BackwardBand band = BackwardBand::of<Config>(args.options);
    const int last_key = min(key + Config::kBlockN, item.seqlen_k) - 1;
    const int first_row = max(0, key - item.offset() - band.right);
    const int end_row = min(item.seqlen_q, last_key - item.offset() + band.left + 1);
    item.first_tile = first_row / kBackwardRows;
    item.tiles = first_row < end_row ? (end_row - 1) / kBackwardRows + 1 - item.first_tile : 0;
  }
  item.begin = 0;
  item.end = item.tiles * static_cast<int>(Config::kAddsUp ? 1 : group);
  item.partial_out = item.partial_in = -1;
  return true;
}

// The items of one thread block, in the order in which it processes them.
template <class Config>
class Sm90BackwardList {
 public:
  // Whether each thread block has a fixed list of items, because all key blocks have the same number of steps.
  static constexpr bool kIsFixed = Config::kMask == MaskKind::kFull && !Config::kIsVarlen && !has_block_mask<Config>();
  static constexpr bool kCuts = kIsFixed && !Config::kIsDeterministic && !Config::kOwnsHeads;
  // Whether the later steps of a split item write sums for the thread block with its first steps.
  static constexpr bool kLeavesSums = kCuts && !Config::kAddsUp;

  __device__ __forceinline__ explicit Sm90BackwardList(const Sm90BackwardArgs& args) : args_(args) {
    num_items_ = args.key_blocks * args.base.batch * (Config::kAddsUp ? args.base.num_heads_q : args.base.num_heads_k);
    next_ = blockIdx.x;
    if constexpr (kIsFixed) {
      steps_ = static_cast<int>(num_tiles(args.base.seqlen_q, kBackwardRows)) *
               static_cast<int>(Config::kAddsUp ? 1 : args.base.num_heads_q / args.base.num_heads_k);
      const bool is_cut = kCuts && steps_ > 0 && num_items_ > gridDim.x && num_items_ % gridDim.x != 0;
      first_cut_ = is_cut ? (num_items_ / gridDim.x - 1) * gridDim.x : num_items_;
      const int64 steps = int64{num_items_ - first_cut_} * steps_;
      at_ = static_cast<int>(blockIdx.x * steps / gridDim.x);
      run_end_ = static_cast<int>((blockIdx.x + 1) * steps / gridDim.x);
    }
  }

  // Writes the next item. Returns false if there is none.
  [[nodiscard]] __device__ __forceinline__ bool next(Sm90BackwardItem& item) {
    if constexpr (Config::kOwnsHeads) {
      return next_of_own_heads(item);
    } else if constexpr (kIsFixed) {
      if (next_ < first_cut_) {
        const bool exists = make_item<Config>(item, args_, next_);
        next_ = next_index<Schedule::kStatic>(next_, nullptr);
        return exists;  // true, because each key block of a fixed list exists
      }
      if (at_ >= run_end_) return false;
      if (!make_item<Config>(item, args_, first_cut_ + at_ / steps_)) return false;
      item.begin = at_ % steps_;
      item.end = min(steps_, item.begin + run_end_ - at_);
      if constexpr (kLeavesSums) {
        item.partial_out = item.begin > 0 ? static_cast<int>(blockIdx.x) : -1;
        item.partial_in = item.begin == 0 && item.end < steps_ ? static_cast<int>(blockIdx.x) + 1 : -1;
      }
      at_ += item.end - item.begin;
      return true;
    } else {
      // Request the next item only now. An item that was requested together with the previous one could not go to a
      // thread block that becomes free earlier.
      do {
        if (has_begun_) next_ = next_index<Schedule::kDynamic>(next_, args_.next_item);
        has_begun_ = true;
      } while (next_ < num_items_ && !make_item<Config>(item, args_, next_));
      return next_ < num_items_;
    }
  }

 private:
  // Writes the next item: the next key block of the current head, or the first key block of the head whose index is
  // larger by gridDim.x. Used if kOwnsHeads is set.
  [[nodiscard]] __device__ __forceinline__ bool next_of_own_heads(Sm90BackwardItem& item) {
    const uint32 index = next_ * args_.key_blocks + key_block_;
    if (index >= num_items_) return false;
    if (++key_block_ == args_.key_blocks) {
      key_block_ = 0;
      next_ += gridDim.x;
    }
    return make_item<Config>(item, args_, index);  // returns true, because each key block of these heads exists
  }

  const Sm90BackwardArgs& args_;
  uint32 num_items_;
  uint32 next_;  // index of the next item. If kOwnsHeads is set, the index of the next head. With dynamic scheduling,
                 // the index of the item that was requested last
  bool has_begun_ = false;
  uint32 key_block_ = 0;  // next key block of that head, used if kOwnsHeads is set
  uint32 first_cut_;      // items from this index on may be split
  int steps_;             // steps of an item
  int at_;                // this thread block processes the steps [at_, run_end_) among the steps of all items from
                          // first_cut_ on
  int run_end_;
};

// Returns the value of lane 0, which must be the same in all lanes. The shuffle lets the compiler keep the value, and
// values derived from it, in uniform registers. The computing warpgroups have no ordinary registers to spare.
[[nodiscard]] __device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

[[nodiscard]] __device__ __forceinline__ Sm90BackwardItem uniform_item(const Sm90BackwardItem& item) {
  return {uniform(item.key),        uniform(item.head_k),      uniform(item.batch),    uniform(item.first_tile),
          uniform(item.tiles),      uniform(item.begin),       uniform(item.end),      uniform(item.partial_out),
          uniform(item.partial_in), uniform(item.seqlen_q),    uniform(item.seqlen_k), uniform(item.q_begin),
          uniform(item.k_begin),    uniform(item.stats_begin), uniform(item.sequence), uniform(item.head)};
}

// The tiles [tile, tile_end) of a work item that belong to one query head.
struct BackwardSegment {
  int step_end;
  int head;  // query head
  int tile;
  int tile_end;

  [[nodiscard]] static __device__ __forceinline__ BackwardSegment at(const Sm90BackwardItem& item, int step) {
    const int in_group = step < item.tiles ? 0 : step / item.tiles;  // avoids a division, whose cost is measurable
    const int end = min(item.end, (in_group + 1) * item.tiles);
    const int tile = item.first_tile + step - in_group * item.tiles;
    return {end, item.head + in_group, tile, tile + end - step};
  }
  // Returns the segment in uniform registers. All lanes of a warp must call this.
  [[nodiscard]] __device__ __forceinline__ BackwardSegment as_uniform() const {
    return {uniform(step_end), uniform(head), uniform(tile), uniform(tile_end)};
  }
};

// Returns the padded row at which the statistics and the dq sums of a query tile start, counted through all heads.
[[nodiscard]] __device__ __forceinline__ int64 backward_stats_row(const Sm90BackwardArgs& args,
                                                                  const Sm90BackwardItem& item, int head, int tile) {
  return (int64{item.batch} * args.base.num_heads_q + head) * args.stats_rows + item.stats_begin +
         int64{tile} * kBackwardRows;
}

// Query rows of a thread block or of one of its warpgroups, and the key tiles that at least one of these rows sees.
struct BackwardRows {
  int row;       // first row, as an index in the sequence
  int count;     // number of rows that exist; not positive if there are none
  int tile;      // first key tile that a row sees
  int tile_end;  // end of the key tiles; there are none if tile_end <= tile

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardRows of(const SequenceSpan& span, const BackwardBand& band,
                                                                  int row, int rows) {
    const auto seqlen_q = static_cast<int>(span.seqlen_q);
    const auto seqlen_k = static_cast<int>(span.seqlen_k);
    const int offset = seqlen_k - seqlen_q;
    const int count = min(rows, seqlen_q - row);
    const int first_key = max(0, row + offset - band.left);
    const int end_key = count <= 0 ? 0 : min(seqlen_k, row + count + offset + band.right);
    const int tile = first_key / Config::kBlockN;
    return {row, count, tile, end_key <= first_key ? tile : (end_key - 1) / Config::kBlockN + 1};
  }
};

// The work of one thread block of sm90_backward_wide_queries.
struct alignas(8) BackwardRowBlock {
  uint32 sequence;
  int head;
  SequenceSpan span;
  BackwardBand band;
  BackwardRows rows;

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardRowBlock mine(const Sm90BackwardArgs& args) {
    const auto tiles = static_cast<uint32>(num_tiles(args.base.seqlen_q, kBackwardWideRows));
    constexpr int64 kColumns = Config::kHeadDim + Config::kHeadDimV;
    // The blocks of a cluster process the same rows and the same head, each in a different sequence.
    constexpr uint32 kBlocks = Config::kDtermsBlocks > 1 ? Config::kDtermsBlocks : 1;
    HeadTile at = Config::kMask == MaskKind::kFull && !Config::kIsVarlen
                      ? HeadTile::of_block(blockIdx.x / kBlocks, tiles, args.base.num_heads_q)
                      : longest_first(blockIdx.x / kBlocks, tiles, args.base.batch / kBlocks, args.base.num_heads_q,
                                      args.base.seqlen_k * kColumns * static_cast<int64>(kBlocks * sizeof(Bits16)));
    if constexpr (kBlocks > 1) at.batch = blockIdx.x % kBlocks;
    BackwardRowBlock block = {at.batch, static_cast<int>(at.head)};
    block.span = sequence_span<Config>(args.base, args.options, at.batch);
    block.band = BackwardBand::of<Config>(args.options);
    block.rows = BackwardRows::of<Config>(block.span, block.band, static_cast<int>(at.tile) * kBackwardWideRows,
                                          kBackwardWideRows);
    if constexpr (has_block_mask<Config>()) {
      block.rows.tile = 0;
      block.rows.tile_end = block.rows.count > 0 ? block.list<Config>(args).count : 0;
    }
    return block;
  }

  // Returns the block mask's list of key tiles that the rows see. The tiles in `rows` are then indices into this list.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ auto list(const Sm90BackwardArgs& args) const {
    return KeyTileList<Config, kBackwardWideRows / kBackwardRows>::of(
        args.options.block_mask, static_cast<int>(sequence), head, rows.row / kBackwardWideRows);
  }

  // Returns the rows of one of the block's warpgroups, and the key tiles that these rows see.
  template <class Config>
  [[nodiscard]] __device__ __forceinline__ BackwardRows of_warpgroup(int warpgroup) const {
    BackwardRows own = BackwardRows::of<Config>(span, band, rows.row + warpgroup * kBackwardRows, kBackwardRows);
    if constexpr (has_block_mask<Config>()) {
      own.tile = 0;
      own.tile_end = own.count > 0 ? rows.tile_end : 0;
    }
    return own;
  }
  [[nodiscard]] __device__ __forceinline__ int offset() const {
    return static_cast<int>(span.seqlen_k - span.seqlen_q);
  }
};
static_assert(sizeof(BackwardRowBlock) == kBackwardRowBlockBytes);

}  // namespace attend
