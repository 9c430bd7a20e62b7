// What the computing warps of a decode block do: its pieces, and what blocks leave for each other.
#pragma once

#include "../isa/grid_dependency.cuh"
#include "decode_columns_steps.cuh"
#include "decode_loader.cuh"
#include "decode_merge.cuh"
#include "decode_output.cuh"
#include "decode_steps.cuh"
#include "decode_warpgroup_output.cuh"
#include "decode_warpgroup_steps.cuh"

namespace attend {

template <class Config, bool kByWarpgroup = Config::kByWarpgroup, int kColumnParts = Config::kColumnParts>
struct DecodeStepsFor {
  using Type = DecodeSteps<Config>;
};
template <class Config>
struct DecodeStepsFor<Config, true, 1> {
  using Type = DecodeWarpgroupSteps<Config>;
};
template <class Config>
struct DecodeStepsFor<Config, true, 2> {
  using Type = DecodeColumnsSteps<Config>;
};

template <class Config>
class DecodeCompute : DecodeStepsFor<Config>::Type {
  using Steps = typename DecodeStepsFor<Config>::Type;
  using Team = DecodeTeam<Config>;
  using Sizes = DecodeSizes<Config>;
  using State = DecodeState<Config>;
  using Share = DecodeShareOf<Config>;
  using Nodes = DecodeNodes<Config>;
  static constexpr DecodeSmem kSmem = Sizes::kSmem;
  using Team::block_;
  using Team::maxima_;
  using Team::role_;
  using Team::rows_;
  using Team::stack_;
  using Team::sums_;

 public:
  __device__ __forceinline__ explicit DecodeCompute(const DecodeContext<Config>& block) : Steps(block) {}

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
        if constexpr (Sizes::kLeavesInTurns) {
          Steps::begin_merging();
          if (!Steps::has_last()) return true;
        }
      }
      // Of a part's nodes the last one; the others are on the stack
      State last = merges ? merge_nodes() : compute_piece(has_rows);
      has_rows = false;
      if (Steps::has_last()) {
        if (merges || block_.cursor.piece.is_whole()) {
          stack_.take_all(last);
          write_rows(block_.args, block_.cursor.item.span, block_.cursor.piece, role_.again(), last,
                     Config::kByWarpgroup ? maxima_ : sums_);
        } else {
          leave_nodes(last);
        }
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
    // The rows are there, the first step is under way; it is known whether the schedule is the call's
    block_barrier<Config>();
    if (block_.told().changed == 0) return true;
    Steps::give_back(block_.told().filled);
    return false;
  }

  // Has the thread's state a row that exists? Of others no nodes are written.
  [[nodiscard]] __device__ __forceinline__ bool is_live() const {
    if constexpr (Config::kByWarpgroup) return role_.warp * 16 < block_.cursor.piece.num_rows;
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
  [[nodiscard]] __device__ __forceinline__ State compute_piece(bool has_rows) {
    const DecodePiece& piece = block_.cursor.piece;
    if (!has_rows) {
      compute_barrier<Config>();  // all are done with the rows of the piece before
      load_rows<Config>(block_.args, block_.cursor.item.span, piece, block_.smem + kSmem.q, rows_);
      wait_for_rows<Config>();
      compute_barrier<Config>();  // the rows are there
    }
    return Steps::compute(keys_of_all<Config>(rows_, piece), piece.begins_item ? 0 : piece.begin);
  }

  // The nodes of a part of an item, for the block that has its end. state: the last one. Those before it are on top of
  // the stack.
  __device__ __forceinline__ void leave_nodes(State& state) {
    const DecodePiece& piece = block_.cursor.piece;
    const Nodes nodes = {block_.args, launch_};
    const int most = piece.begins_item ? kDecodeLeadingNodes : kDecodeInnerNodes;
    int own_begin = 0;  // of node `lane`. The first one has what is left
    const int count = for_each_node<Sizes::kLeafShift>(
        piece.begin, piece.end, piece.begins_item, piece.ends_item,
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
        share = DecodeMerge<Config>::run(nodes, list + i, at_once, shared, stack, has_share());
      }
      __syncwarp();  // all lanes are done
      first += kWarpThreads;
      if (first > static_cast<int>(blockIdx.x)) break;
      barrier_arrive<kListThreads<Config>>(kListReadBarrier);  // the list may be written again
    }
    stack.take_all(share);
    return DecodeShareFor<Config>::state_of(share);
  }

  uint32 launch_ = 0;
};

}  // namespace attend
