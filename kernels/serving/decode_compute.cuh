// What the computing warps of a decode block do: its pieces, step by step, and what blocks leave for each other.
#pragma once

#include "../isa/grid_dependency.cuh"
#include "decode_leaf.cuh"
#include "decode_loader.cuh"
#include "decode_merge.cuh"
#include "decode_output.cuh"

namespace attend {

template <class Config>
class DecodeCompute {
 public:
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Share = DecodeShareOf<Config>;
  using Nodes = DecodeNodes<Config>;
  using Place = typename DecodeRing<Config>::Place;
  static constexpr DecodeSmem kSmem = Sizes::kSmem;
  // Nobody wants the slot of the keys when they have been multiplied: neither values nor factors lie there.
  static constexpr bool kLeavesKeys = Sizes::kLoadsValues && !Sizes::kRowFactors;

  __device__ __forceinline__ explicit DecodeCompute(const DecodeContext<Config>& block)
      : block_(block),
        role_(DecodeRole<Config>::of_this_warp()),
        rows_(reinterpret_cast<DecodeRow*>(block.smem + kSmem.rows)),
        q_rows_(block.smem + kSmem.q + role_.first_row() * Sizes::kQRow),
        p_rows_(block.smem + kSmem.p + role_.first_row() * Sizes::kPRow),
        maxima_(reinterpret_cast<float*>(block.smem + kSmem.maxima) + role_.first_row() * kTeamWarps),
        sums_(reinterpret_cast<float*>(block.smem + kSmem.sums) + role_.first_row() * kTeamWarps),
        exponents_(reinterpret_cast<int*>(block.smem + kSmem.exponents) + role_.first_row() * kTeamWarps),
        scale_(DecodeScale::of(block.args)),
        stack_(block.smem + kSmem.stack, static_cast<char*>(block.args.stack) + static_cast<int64>(blockIdx.x) *
                                                                                    block.args.stack_nodes *
                                                                                    decode_stack_bytes(Sizes::kTile)) {}

  // All pieces, then the merging of the item that the block began with, if the block has its end but not its begin.
  // is_early: the kernel before may still run. false: the schedule is not the call's.
  __device__ __forceinline__ bool run(bool is_early) {
    // Offsets of packed rows may be anything, and the rows they name need not exist
    bool has_rows = !is_early || block_.args.cu_seqlens_q == nullptr;
    if (!begin(is_early, has_rows)) return false;
#pragma unroll 1
    while (true) {
      const bool merges = block_.cursor.is_done;
      if (merges) {
        if (!block_.cursor.merges) return true;
        if (block_.cursor.number != block_.cursor.begin) {
          block_.cursor.restart(block_.first);
        }
      }
      // Of a part's nodes the last one; the others are on the stack
      State last = merges ? merge_nodes() : compute(has_rows);
      has_rows = false;
      if (merges || block_.cursor.piece.is_whole()) {
        stack_.take_all(last);
        write_rows(block_.args, block_.cursor.item.span, block_.cursor.piece, role_.again(), last, sums_);
      } else {
        leave_nodes(last);
      }
      if (merges) return true;
      block_.cursor.advance(block_.args, role_.lane);
    }
  }

 private:
  // When the kernel before has ended: the launch's number and, if takes_rows, the rows of the first piece. Is the
  // schedule the call's? If it is not, the slots of its first step are given back.
  [[nodiscard]] __device__ __forceinline__ bool begin(bool is_early, bool takes_rows) {
    const bool has_work = !block_.cursor.is_done;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    if (is_early && has_work) DecodeLoader<Config>::fetch(block_, warp, role_.lane);
    wait_for_kernels_before();
    let_next_kernel_start();
    launch_ = launch_number(block_.args);
    if (has_work && takes_rows) {
      load_rows<Config>(block_.args, block_.cursor.item.span, block_.cursor.piece, block_.smem + kSmem.q, rows_);
    }
    if (warp == 0) {
      const DecodeSequence* kept = kept_sequences<Config>(block_.args, block_.smem);
      const bool changed = is_early && have_changed(block_.args, kept, role_.lane);
      if (role_.lane == 0) block_.told().changed = changed ? 1 : 0;
    }
    wait_for_rows<Config>();
    block_barrier<
        Config>();  // the rows are there, the first step is under way; it is known whether the schedule is the call's
    if (block_.told().changed == 0) return true;
    for (int filled = block_.told().filled; filled > 0; --filled) {
      block_.ring.full(place_.stage).wait(place_.parity);  // the copies have landed
      release(place_.stage);
      place_.advance();
    }
    return false;
  }

  // Has the thread's state a row that exists? Of others no nodes are written.
  [[nodiscard]] __device__ __forceinline__ bool is_live() const {
    return Sizes::kEights > 1 || role_.first_row() + role_.lane % 4 * 2 < block_.cursor.piece.num_rows;
  }
  // And its share of a node? Of others none are merged.
  [[nodiscard]] __device__ __forceinline__ bool has_share() const {
    if constexpr (Config::kHalfRows) {
      return DecodeShareFor<Config>::row_of(role_.lane) < block_.cursor.piece.num_rows;
    } else {
      return is_live();
    }
  }

  // The steps of a piece. Returns its last node, and leaves the others on the stack.
  [[nodiscard]] __device__ __forceinline__ State compute(bool has_rows) {
    const DecodePiece& piece = block_.cursor.piece;
    if (!has_rows) {
      compute_barrier<Config>();  // all are done with the rows of the piece before
      load_rows<Config>(block_.args, block_.cursor.item.span, piece, block_.smem + kSmem.q, rows_);
      wait_for_rows<Config>();
      compute_barrier<Config>();  // the rows are there
    }
    if constexpr (Sizes::kHasFactors && !Sizes::kRowFactors) {
      of_keys_ = factor(block_.args.cache.k_descale, block_.cursor.item.span.index, piece.head, {});
      of_values_ = factor(block_.args.cache.v_descale, block_.cursor.item.span.index, piece.head, {});
    }
    if constexpr (kConvertsQueries<Config>) {
      convert_queries(q_rows_, rows_ + role_.first_row(), role_);
      team_barrier(role_);  // they are of f16
    }
    products_.take_queries(q_rows_, role_.lane);
    const KeysOfAll of_all = keys_of_all<Config>(rows_, piece);
    const int first = piece.begins_item ? 0 : piece.begin;
    const int end = piece.end_step;
    int unit = piece.first_step;
    if (unit >= end) return State::empty();
    if constexpr (Sizes::kAhead) take_keys();
#pragma unroll 1
    while (true) {
      const int end_of_leaf = min(leaf_end(unit), end), level = leaf_level(unit), begin = unit >> level << level;
      leaf_.clear();
#pragma unroll 1
      for (; unit < end_of_leaf; ++unit) step(unit, of_all, unit + 1 < end);
      State state = leaf_.finished(of_values_);
      const int begin_of_all = stack_.complete(state, begin, level, first);
      if (unit == end) return state;
      stack_.push(state, begin_of_all);
    }
  }

  // The products of q with the keys in a slot, for the step that is next.
  __device__ __forceinline__ void multiply(int keys) {
    products_.scores(next_.s, block_.ring.slot(keys) + role_.warp * kWarpKeys * Sizes::KRows::kPitch, q_rows_,
                     role_.lane);
    const uint2 words = *reinterpret_cast<const uint2*>(block_.ring.existing(keys));
    next_.existing = static_cast<uint64>(words.y) << 32 | words.x;
    next_.keys = keys;
  }
  // The same when there is nothing else to do.
  __device__ __forceinline__ void take_keys() {
    const int keys = place_.stage;
    block_.ring.full(keys).wait(place_.parity);  // the keys are in their slot
    multiply(keys);
    if constexpr (kLeavesKeys) release(keys);
    place_.advance();
  }

  // kAhead: the products with the keys of the next step run beside what is done with those of this one. has_next: there
  // is one; otherwise whatever lies in the slot of the values is multiplied, for nothing.
  __device__ __forceinline__ void step(int unit, const KeysOfAll& of_all, bool has_next) {
    const int first_key = unit * kStepKeys, own_key = first_key + role_.warp * kWarpKeys;
    const DecodeRow* rows = rows_ + role_.first_row();
    if constexpr (!Sizes::kAhead) take_keys();
    const int keys = next_.keys;
    const uint64 existing = next_.existing;
    const Place values = Sizes::kLoadsValues ? place_ : Place{keys, 0};
    if constexpr (Sizes::kLoadsValues) place_.advance();
    const uint64 seen_by_all = of_all.of_step(first_key);
    const bool all_visible = (existing & seen_by_all) == ~uint64{0};
    const float2* factors = block_.ring.factors(keys) + role_.warp * kWarpKeys;
    float s[Sizes::kEights][4];
#pragma unroll
    for (int i = 0; i < Sizes::kEights * 4; ++i) s[i / 4][i % 4] = next_.s[i / 4][i % 4];
    if constexpr (Sizes::kRowFactors) {
      leaf_.multiply_keys(s, factors[role_.lane / 4].x, factors[role_.lane / 4 + 8].x, rows, role_.lane);
    } else if constexpr (Sizes::kHasFactors) {
      leaf_.multiply_keys(s, of_keys_, of_keys_, rows, role_.lane);
    }
    scale_.template apply<Config>(s);
    const bool has_slopes = block_.args.alibi_slopes != nullptr;
    if (!has_slopes && (existing & ~seen_by_all) == 0) {
      if (existing != ~uint64{0})
        leaf_.mask_missing(s, static_cast<uint32>(existing >> role_.warp * kWarpKeys), role_.lane);
    } else {
      leaf_.mask(s, rows, has_slopes, all_visible, static_cast<uint32>(existing >> role_.warp * kWarpKeys), own_key,
                 role_.lane);
    }
    leaf_.share_maxima(s, maxima_, role_);
    if constexpr (Sizes::kRowFactors) leaf_.share_exponents(s, factors, all_visible, exponents_, role_);
    const Place ahead = has_next ? place_ : values;
    if constexpr (Sizes::kAhead) {  // the next keys, or the values, are in their slot
      if (has_next || Sizes::kLoadsValues) block_.ring.full(ahead.stage).wait(ahead.parity);
    }
    team_barrier(role_);  // the maxima are there, and P of the step before has been read
    leaf_.take_maxima(s, maxima_, role_);
    if constexpr (Sizes::kRowFactors) {
      leaf_.weigh(s, factors, exponents_, rows, all_visible, own_key, role_.lane);
      if constexpr (Sizes::kLoadsValues) release(keys);
    } else if constexpr (Sizes::kHasFactors) {
      leaf_.raise(s);
    }
    if constexpr (Sizes::kAhead) multiply(ahead.stage);
    DecodeP<Config>::store(s, p_rows_, role_);
    team_barrier(role_);  // P is there, and the maxima have been read
    if (Sizes::kAhead && has_next) {
      if constexpr (kLeavesKeys) release(ahead.stage);
      place_.advance();
    }
    if constexpr (Sizes::kLoadsValues)
      block_.ring.full(values.stage).wait(values.parity);  // the values are in their slot
    char* of_values = block_.ring.slot(values.stage);
    if (Config::kHasBoxes && existing != ~uint64{0}) {
      leaf_.clear_missing(of_values, existing, role_.again());
    }
    if ((existing & ~seen_by_all) != 0) {
      leaf_.add_nonfinite(p_rows_, rows, of_values, existing, first_key, role_.again());
    }
    products_.add_values(leaf_.o, p_rows_, of_values, role_);
    release(values.stage);
  }

  // The warp has read the slot.
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();  // all lanes have
    arrive_as_warp(block_.ring.empty(slot));
  }

  // The nodes of a part of an item, for the block that has its end. state: the last one. Those before it are on top of
  // the stack.
  __device__ __forceinline__ void leave_nodes(State& state) {
    const DecodePiece& piece = block_.cursor.piece;
    const Nodes nodes = {block_.args, launch_};
    const int most = piece.begins_item ? kDecodeLeadingNodes : kDecodeInnerNodes;
    int own_begin = 0;  // of node `lane`. The first one has what is left
    const int count = for_each_node(piece.begin, piece.end, piece.begins_item, piece.ends_item,
                                    [&](int n, int at, int) { own_begin = n == role_.lane && n > 0 ? at : own_begin; });
    if (count > most) __trap();
#pragma unroll 1
    for (int number = count - 1; number >= 0; --number) {
      const int begin = __shfl_sync(kAllLanes, own_begin, number);
      const bool has_keys = number == 0 || begin < piece.end_step;  // rows of a tile may end before the item does
      State node = State::empty();
      if (has_keys) {
        stack_.take(state, begin);
        node = state;
        state = State::empty();
      }
      if (is_live()) nodes.write(slot_of(piece.begins_item, number), node);
    }
  }

  // Merges all nodes of the cursor's item, whose end is the block's. A loading warp lists them: list_all().
  [[nodiscard]] __device__ __forceinline__ State merge_nodes() {
    static_assert(Nodes::kMostGathered >= 1);
    const Nodes nodes = {block_.args, launch_};
    const ListedNode* list = reinterpret_cast<const ListedNode*>(block_.smem + kSmem.list);
    char* shared = block_.smem + kSmem.ring;
    int first = first_block_of(block_.schedule, block_.cursor.item);
    DecodeStack<Config, Share> stack = stack_.template again<Share>();
    Share share = Share::empty();
    bool is_first = true;
#pragma unroll 1
    while (true) {
      barrier_wait<kListThreads<Config>>(kListBarrier);  // the list is there; the ring has been read
      const int count = block_.told().count;
#pragma unroll 1
      for (int i = 0; i < count; i += Nodes::kMostGathered) {
        const int at_once = min(count - i, Nodes::kMostGathered);
        if (has_share()) {
          if (!is_first) stack.push(share);
          nodes.gather(list + i, at_once, shared);
        }
        is_first = false;
        share = DecodeMerge<Config>::run(list + i, at_once, shared, stack, has_share());
      }
      __syncwarp();  // all lanes are done
      first += kWarpThreads;
      if (first > static_cast<int>(blockIdx.x)) break;
      barrier_arrive<kListThreads<Config>>(kListReadBarrier);  // the list may be written again
    }
    stack.take_all(share);
    return DecodeShareFor<Config>::state_of(share);
  }

  DecodeContext<Config> block_;
  uint32 launch_ = 0;
  DecodeRole<Config> role_;
  DecodeRow* rows_;
  char* q_rows_;  // of the team, as all below
  char* p_rows_;
  float* maxima_;
  float* sums_;
  int* exponents_;
  DecodeScale scale_;
  DecodeStack<Config> stack_;
  DecodeProducts<Config> products_;
  DecodeLeaf<Config> leaf_;
  Place place_;
  float of_keys_ = 1.0f, of_values_ = 1.0f;  // factors of all rows of the piece, without kRowFactors
  struct {
    float s[Sizes::kEights][4];
    uint64 existing;
    int keys;  // the slot
  } next_;     // the products of a step that has not begun
};

}  // namespace attend
