// Attention of a few query rows of each sequence over a cache of keys and values.
//
// Shapes   DecodeArgs; any lengths, strides, pages
// Work     decode_schedule.cuh: a block has an equal share of all units of 64 keys
// Block    four stripes of warps; each has 16 keys of every 64, in a ring of slots of its own that cp.async fills
//          (decode_loader.cuh), and no stripe waits for another but at the ends of leaves (decode_stripe.cuh)
// Order    decode_tree.cuh: sums of a leaf's stripes, then the leaves along a tree of positions (decode_state.cuh), the
//          same for every grid. What blocks leave for each other: decode_exchange.cuh
// Source   Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
#pragma once

#include "decode_exchange.cuh"
#include "decode_output.cuh"
#include "decode_stripe.cuh"

namespace attend {

static_assert(sizeof(DecodeCursor) <= kDecodeCursorBytes && sizeof(DecodeSchedule) <= kDecodeCursorBytes);

template <class Config>
class DecodeBlock {
 public:
  using Sizes = DecodeSizes<Config>;
  using Loader = DecodeLoader<Config>;
  using State = DecodeState<Config>;
  using Nodes = DecodeNodes<Config>;
  static constexpr DecodeSmem kSmem = Sizes::kSmem;

  __device__ __forceinline__ DecodeBlock(const DecodeArgs& args, char* smem)
      : args_(args),
        smem_(smem),
        rows_(reinterpret_cast<DecodeRow*>(smem + kSmem.rows)),
        role_(DecodeRole<Config>::of_this_warp()),
        schedule_(*reinterpret_cast<DecodeSchedule*>(smem + kSmem.cursors)),
        cursor_(cursor_of(0)),
        scale_(DecodeScale::of(args)),
        stack_(smem + kSmem.stack, static_cast<char*>(args.stack) + static_cast<int64>(blockIdx.x) * args.stack_nodes *
                                                                        decode_stack_bytes(Sizes::kTile)) {}

  __device__ __forceinline__ void run() {
    launch_ = launch_number(args_);
    clear_padding();
    {
      const DecodeSchedule made =
          DecodeSchedule::make(args_, Sizes::kTileRows, reinterpret_cast<int64*>(smem_ + kSmem.table));
      if (threadIdx.x == 0) schedule_ = made;
    }
    __syncthreads();  // the schedule is there
    if (schedule_.begin < schedule_.end) {
      cursor_.start(args_, schedule_, Sizes::kTileRows);
      DecodeCursor& ahead = cursor_of(1);
      ahead = cursor_;
      __syncwarp();  // both cursors are there
      Loader loader(args_, schedule_, ahead, role_, smem_ + kSmem.ring, smem_ + kSmem.factors);
      work(loader);
    }
    if (threadIdx.x == 0) end_launch(args_);
  }

 private:
  // Columns that rows of q have in shared memory but not in k: products with them have to be 0.
  __device__ __forceinline__ void clear_padding() {
    if constexpr (Config::kHeadDim % 16 != 0) {
      for (int at = static_cast<int>(threadIdx.x) * 16; at < kSmem.q; at += Config::kThreads * 16) {
        *reinterpret_cast<uint4*>(smem_ + at) = {};
      }
      __syncthreads();  // before the first copies
    }
  }

  [[nodiscard]] __device__ __forceinline__ Nodes nodes_here() const {
    const bool is_live = Sizes::kEights > 1 || role_.first_row() + role_.lane % 4 * 2 < cursor_.piece.num_rows;
    return {args_, launch_, is_live};
  }
  // Of the warp: 0 is where it computes, 1 where it loads.
  [[nodiscard]] __device__ __forceinline__ DecodeCursor& cursor_of(int which) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    return *reinterpret_cast<DecodeCursor*>(smem_ + kSmem.cursors + (1 + warp * 2 + which) * kDecodeCursorBytes);
  }

  // All pieces, then the merging of the item that the block began with, if the block has its end but not its begin.
  __device__ __forceinline__ void work(Loader& loader) {
    const bool may_merge = !cursor_.piece.begins_item && cursor_.piece.ends_item;
#pragma unroll 1
    while (true) {
      const bool merges = cursor_.is_done;
      if (merges) {
        if (!may_merge) return;
        __syncwarp();  // all lanes have read the cursor
        cursor_.start(args_, schedule_, Sizes::kTileRows);
        __syncwarp();  // it is at the first piece again
        cp_async_wait<0>();
        merge_nodes();
      } else {
        compute(loader);
      }
      if (merges || cursor_.piece.is_whole()) {
        State all = stack_.take(0);
        write_rows(args_, cursor_.item.span, cursor_.piece, role_, all);
      } else {
        leave_nodes();
      }
      if (merges) return;
      __syncwarp();  // all lanes have read the cursor
      cursor_.advance(args_, schedule_, Sizes::kTileRows);
      __syncwarp();  // the next piece is there
    }
  }

  __device__ __forceinline__ void compute(Loader& loader) {
    const DecodePiece& piece = cursor_.piece;
    char* q = smem_ + kSmem.q;
    __syncthreads();  // all are done with the rows of the piece before
    load_rows<Config>(args_, cursor_.item.span, piece, q, rows_);
    __syncthreads();  // the rows are there
    const char* q_rows = q + role_.first_row() * DecodeProducts<Config>::kQRow;
    products_.take_queries(q_rows, role_.lane);
    const KeysOfAll of_all = keys_of_all<Config>(rows_, piece);
    const int first = piece.begins_item ? 0 : piece.begin;
    const int end = piece.end_step;
    stripe_.clear();
#pragma unroll 1
    for (int unit = piece.first_step; unit < end; ++unit) {
      step(unit, of_all, q_rows, loader);
      if (unit + 1 != leaf_end(unit) && unit + 1 != end) continue;
      State leaf = stripe_.merged(smem_ + kSmem.exchange, reinterpret_cast<float2*>(smem_ + kSmem.stats), role_, turn_);
      turn_ ^= 1;
      const int level = leaf_level(unit);
      stack_.push(leaf, unit >> level << level, level, first);
      stripe_.clear();
    }
  }

  __device__ __forceinline__ void step(int unit, const KeysOfAll& of_all, const char* q_rows, Loader& loader) {
    constexpr int kEights = Sizes::kEights;
    const int first_key = unit * kStepKeys + role_.stripe * kStripeKeys;
    const uint32 existing = loader.existing();
    const bool all_visible = existing == 0xFFFFu && first_key >= of_all.low && first_key + kStripeKeys <= of_all.high;
    float s[kEights][4];
    Loader::wait_keys();
    stripe_barrier(role_);  // the stripe's keys are in the slot
    products_.scores(s, loader.keys(stage_), q_rows, role_.lane);
    if constexpr (Loader::kHasFactors) DecodeStripe<Config>::multiply_keys(s, loader.factors(stage_), role_.lane);
    if constexpr (Loader::kLoadsValues) {
      stripe_barrier(role_);  // they have been read: the next ones may come
      loader.load_keys(stage_);
    }
    stripe_.softmax(s, scale_, rows_ + role_.first_row(), args_.alibi_slopes != nullptr, all_visible, existing,
                    first_key, role_.lane);
    Loader::wait_values();
    stripe_barrier(role_);  // the values are in the slot
    if (!all_visible) {
      stripe_.add_nonfinite(s, rows_ + role_.first_row(), loader.values(stage_), loader.factors(stage_), existing,
                            first_key, role_);
    }
    if constexpr (Loader::kHasFactors) stripe_.weigh(s, loader.factors(stage_), role_.lane);
    products_.add_values(stripe_.o, s, loader.values(stage_), role_.first_column_tile(), role_.lane);
    stripe_barrier(role_);  // they have been read
    if constexpr (Loader::kLoadsValues) {
      loader.load_values(stage_);
    } else {
      loader.load_keys(stage_);
    }
    if (++stage_ == Config::kStages) stage_ = 0;
  }

  // The nodes of a part of an item, for the block that has its end. The last ones are on top of the stack.
  __device__ __forceinline__ void leave_nodes() {
    const DecodePiece& piece = cursor_.piece;
    const Nodes nodes = nodes_here();
    int begins[kDecodeInnerNodes];
    const int count = for_each_node(piece.begin, piece.end, piece.ends_item, [&](int number, int begin, int) {
      if (number >= (piece.begins_item ? kDecodeLeadingNodes : kDecodeInnerNodes)) __trap();
      begins[number] = begin;
    });
#pragma unroll 1
    for (int number = count - 1; number >= 0; --number) {
      State state = stack_.take(number == 0 ? 0 : begins[number]);
      nodes.write(slot_of(piece.begins_item, number), state);
    }
  }

  // All nodes of the cursor's item, whose end is the block's, onto the stack.
  __device__ __forceinline__ void merge_nodes() {
    constexpr int kAtOnce = State::kFloats <= 16 ? 4 : State::kFloats <= 32 ? 2 : 1;
    const DecodeItem& item = cursor_.item;
    const Nodes nodes = nodes_here();
    ListedNode* list = reinterpret_cast<ListedNode*>(smem_ + kSmem.ring);
    int* length = reinterpret_cast<int*>(smem_ + kSmem.table);
#pragma unroll 1
    for (int64 first = divide(item.first, schedule_.share).quotient; first <= blockIdx.x; first += kWarpThreads) {
      __syncthreads();  // the ring, or the list before, is not read any more
      if (threadIdx.x < kWarpThreads) {
        const int count = list_nodes(schedule_, item, first, blockIdx.x, list);
        if (threadIdx.x == 0) *length = count;
      }
      __syncthreads();  // the list is there
      const int count = *length;
#pragma unroll 1
      for (int i = 0; i < count; i += kAtOnce) {
        const char* from[kAtOnce];
        State states[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const ListedNode& node = list[min(i + j, count - 1)];
          from[j] = nodes.at(node.block, node.slot);
        }
        nodes.read(from, states);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (i + j < count) stack_.push(states[j], list[i + j].begin, list[i + j].level, 0);
        }
      }
    }
  }

  const DecodeArgs& args_;
  char* smem_;
  DecodeRow* rows_;
  DecodeRole<Config> role_;
  DecodeSchedule& schedule_;
  DecodeCursor& cursor_;
  DecodeScale scale_;
  DecodeStack<Config> stack_;
  DecodeProducts<Config> products_;
  DecodeStripe<Config> stripe_;
  uint32 launch_ = 0;
  int stage_ = 0;
  int turn_ = 0;
};

template <class Config>
__device__ void decode(const DecodeArgs& args) {
  extern __shared__ __align__(128) char smem[];
  DecodeBlock<Config> block(args, smem);
  block.run();
}

}  // namespace attend
