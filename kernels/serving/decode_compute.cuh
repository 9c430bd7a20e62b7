// Computing warps of a decode block. These warps compute the block's pieces, and exchange tree nodes with other blocks.
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

  // Computes all pieces of the block. If the block computes the end of its first item but not the start, it then merges
  // the nodes of that item. `is_early` is set if the previous kernel may still be running. Returns false if the early
  // schedule is incorrect for this call.
  __device__ __forceinline__ bool run(bool is_early) {
    // The previous kernel may still change the offsets of packed rows, and the current offsets can point to missing
    // rows. So the rows are not read yet
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
      // The last node of a piece or of an item. All other nodes are on the stack
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
  // Waits for the previous kernel. Reads the launch number. If takes_rows is set, loads the rows of the first piece.
  // Returns whether the schedule is correct for this call. If it is incorrect, releases the slots of the first step.
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
    // Waits until the rows are loaded, the copies of the first step have been issued, and `changed` is set
    block_barrier<Config>();
    if (block_.told().changed == 0) return true;
    Steps::give_back(block_.told().filled);
    return false;
  }

  // Returns whether the thread's state has a row that exists. Otherwise the thread writes no nodes.
  [[nodiscard]] __device__ __forceinline__ bool is_live() const {
    if constexpr (Config::kByWarpgroup) return role_.warp * 16 < block_.cursor.piece.num_rows;
    return Sizes::kEights > 1 || role_.first_row() + role_.lane % 4 * 2 < block_.cursor.piece.num_rows;
  }
  // Returns whether the thread's share of a node has a row that exists. Otherwise the thread merges no nodes.
  [[nodiscard]] __device__ __forceinline__ bool has_share() const {
    if constexpr (Config::kHalfRows) {
      return DecodeShareFor<Config>::row_of(role_.lane) < block_.cursor.piece.num_rows;
    } else {
      return is_live();
    }
  }

  // Computes the steps of a piece. Returns the last node, and leaves all other nodes on the stack.
  [[nodiscard]] __device__ __forceinline__ State compute_piece(bool has_rows) {
    const DecodePiece& piece = block_.cursor.piece;
    if (!has_rows) {
      compute_barrier<Config>();  // waits until all computing threads have finished with the rows of the previous
                                  // piece, which may then be overwritten
      load_rows<Config>(block_.args, block_.cursor.item.span, piece, block_.smem + kSmem.q, rows_);
      wait_for_rows<Config>();
      compute_barrier<Config>();  // waits until all computing threads can read the new rows
    }
    return Steps::compute(keys_of_all<Config>(rows_, piece), piece.begins_item ? 0 : piece.begin);
  }

  // Writes the nodes of a piece to device memory, for the block that computes the end of the item. `state` is the last
  // node. The nodes before it are on top of the stack.
  __device__ __forceinline__ void leave_nodes(State& state) {
    const DecodePiece& piece = block_.cursor.piece;
    const Nodes nodes = {block_.args, launch_};
    const int most = piece.begins_item ? kDecodeLeadingNodes : kDecodeInnerNodes;
    int own_begin = 0;  // first unit of node `lane`. It stays 0 for node 0, which is merged from all nodes that remain
                        // on the stack
    const int count = for_each_node<Sizes::kLeafShift>(
        piece.begin, piece.end, piece.begins_item, piece.ends_item,
        [&](int n, int at, int) { own_begin = n == role_.lane && n > 0 ? at : own_begin; });
    if (count > most) __trap();
#pragma unroll 1
    for (int number = count - 1; number >= 0; --number) {
      const int begin = __shfl_sync(kAllLanes, own_begin, number);
      const bool has_keys = number == 0 || begin < piece.end_step;  // The rows of a tile may see no keys in the last
                                                                    // units of an item
      State node = State::empty();
      if (has_keys) {
        stack_.take(state, begin);
        node = state;
        state = State::empty();
      }
      if (is_live()) nodes.write(slot_of(piece.begins_item, number), node);
    }
  }

  // Merges all nodes of the cursor's item, which ends in this block. A loading warp lists the nodes in list_all().
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
      barrier_wait<kListThreads<Config>>(kListBarrier);  // waits until the list is written. By then the ring has been
                                                         // read, so it may receive nodes
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
      __syncwarp();  // waits until all lanes have read the list; the loading warp may then overwrite it
      first += kWarpThreads;
      if (first > static_cast<int>(blockIdx.x)) break;
      barrier_arrive<kListThreads<Config>>(kListReadBarrier);  // signals that the list may be overwritten
    }
    stack.take_all(share);
    return DecodeShareFor<Config>::state_of(share);
  }

  uint32 launch_ = 0;
};

}  // namespace attend
