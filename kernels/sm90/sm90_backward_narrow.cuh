// The warpgroup of the sm90 backward pass that loads tiles and computes dq if both head dimensions are at most 64.
//
// Three warpgroups compute with 144 registers per thread. The remaining 80 registers do not suffice for a separate
// loading warpgroup. So a thread block has one key block of 192 keys, and a thread of this warpgroup issues copies
// between two products. No barrier is needed to release the buffers of a tile: once all computing warpgroups have
// stored ds of tile i, they have completed all products of tile i - 1.
#pragma once

#include "sm90_backward_load.cuh"
#include "sm90_backward_query.cuh"
#include "sm90_backward_workspace.cuh"

namespace attend {

template <class Config>
class NarrowQueryWarpgroup {
 public:
  using Shape = BackwardShape<Config>;
  static_assert(Shape::kPasses == 1);

  __device__ __forceinline__ NarrowQueryWarpgroup(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args,
                                                  const Sm90BackwardItem& item)
      : smem_(smem), args_(args), item_(uniform_item(item)), loads_(smem, args, smem.tail_full) {}

  // Runs all steps of the block's only work item. The item must have at least one step.
  __device__ __forceinline__ void run() {
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    const int end = uniform(item_.end);
    BackwardSegment at = BackwardSegment::at(item_, 0).as_uniform();
    load_at_ = at;
    if (warp_ == 0) load_first(end);
    smem_.k_full.wait(0);  // wait until k has arrived
#pragma unroll 1
    for (int step = 0; step < end; ++step) {
      float acc[32];
      // Loaded early, so that the value has arrived before the sums of the tile are staged.
      const int row_tile = backward_row_lists<Config>(args_).number(at.tile);
      const uint32 buffer = static_cast<uint32>(step) % Config::kDsBuffers;
      const auto wait_ds = [&](int warpgroup) {
        // Wait until that warpgroup has stored ds.
        smem_.ds_full[buffer][warpgroup].wait(step / Config::kDsBuffers & 1);
      };
      if constexpr (has_captured_gradients<Config>()) {
        for (int w = 0; w < Shape::kWarpgroups; ++w) wait_ds(w);
        BackwardCaptureSums<Config>::add(args_, item_, at.head, row_tile, smem_.ds[buffer][0], Config::kBlockN);
      }
      begin_ds_k(acc, smem_, buffer, 0, Shape::kWarpgroups, wait_ds);
      if (warp_ == 0 && step > 0 && loaded_ < end) load_next(end);  // reuses the buffers of the previous step
      if constexpr (Config::kIsDeterministic) {
        // This wait takes about as long as the products, which run meanwhile.
        const uint32 turn = blocks_before<Config>(args_, item_, band, at.tile);
        if (threadIdx.x % 32 == 0) change_turns(first_row(at, row_tile), turn);
        __syncwarp();
      }
      wgmma_wait<0>(acc);
      arrive_as_warp(smem_.ds_empty[buffer]);
      add_pass(acc, first_row(at, row_tile));
      if (++at.tile == at.tile_end && step + 1 < end) at = BackwardSegment::at(item_, step + 1).as_uniform();
    }
    if (threadIdx.x % 32 != 0) return;
    if constexpr (Config::kIsDeterministic) end_last_turn();
    bulk_wait();
  }

 private:
  // Returns the padded row at which the dq sums of the tile start.
  [[nodiscard]] __device__ __forceinline__ int64 first_row(const BackwardSegment& at, int row_tile) const {
    return backward_stats_row(args_, item_, at.head, row_tile);
  }

  // Issues the loads of the first steps. Only one warp may call this.
  __device__ __forceinline__ void load_first(int end) {
    loads_.look_up(item_, load_at_.head, load_at_.tile);
    loads_.load_k(item_);
    loads_.load_q(item_, load_at_.head, load_at_.tile, 0);
    loads_.load_v(item_);
    loads_.load_dout(item_, load_at_.head, load_at_.tile, 0);
    step_loads(end);
#pragma unroll 1
    while (loaded_ < min(end, Config::kStages)) load_next(end);
  }

  // Issues the loads of q and dout for the next step.
  __device__ __forceinline__ void load_next(int end) {
    const uint32 stage = static_cast<uint32>(loaded_) % Config::kStages;
    loads_.load_dout(item_, load_at_.head, load_at_.tile, stage);
    loads_.load_q(item_, load_at_.head, load_at_.tile, stage);
    step_loads(end);
  }
  __device__ __forceinline__ void step_loads(int end) {
    if (++loaded_ == end) return;
    if (++load_at_.tile == load_at_.tile_end) load_at_ = BackwardSegment::at(item_, loaded_).as_uniform();
    loads_.look_up(item_, load_at_.head, load_at_.tile);
  }

  // Adds this warp's 16 rows of dq to the float sums in memory. One thread issues the copy.
  __device__ __forceinline__ void add_pass(const float (&acc)[32], int64 stats_row) {
    constexpr int kFloats = Shape::kPassFloats / 4;
    float* const staged = smem_.dq[0] + warp_part_of_pass<Config>(warp_);
    if (threadIdx.x % 32 == 0) bulk_wait_read();  // wait until the copy has read the previous pass from the buffer
    __syncwarp();
    stage_accumulator(acc, staged);
    fence_smem_for_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0 && (!Config::kIsDeterministic || has_turn_)) add_staged(stats_row);
  }
  __device__ __forceinline__ void add_staged(int64 stats_row) {
    constexpr int kFloats = Shape::kPassFloats / 4;
    bulk_add(args_.dq_sums + stats_row * Shape::kDepth + warp_ * kFloats, smem_.dq[0] + warp_ * kFloats, kFloats * 4);
    bulk_commit();
  }

  // Ends this thread's previous turn to add, and checks whether the counter has reached the turn of the current rows.
  // If the counter has not reached it, the staged sums wait. The thread then adds them one step later, while the
  // products and loads of that step run. So waiting sums do not delay their own step. A turn ends one step late, but
  // always before the thread waits for its next turn. Only the thread that adds calls this function.
  __device__ __forceinline__ void change_turns(int64 stats_row, uint32 turn) {
    add_waiting();
    uint32* const last = stats_row_ < 0 ? nullptr : counter(stats_row_);
    const uint32 seen = peek_turn(counter(stats_row));
    complete_additions();
    if (last != nullptr) set_turn(last, turn_ + 1);
    stats_row_ = stats_row;
    turn_ = turn;
    has_turn_ = seen == turn;
  }
  __device__ __forceinline__ void end_last_turn() {
    add_waiting();
    end_turn(counter(stats_row_), turn_);
  }
  __device__ __forceinline__ void add_waiting() {
    if (has_turn_) return;
    wait_turn(counter(stats_row_), turn_);
    add_staged(stats_row_);
  }
  [[nodiscard]] __device__ __forceinline__ uint32* counter(int64 stats_row) const {
    return args_.dq_turns + stats_row / kBackwardRows * kBackwardTurns + warp_;
  }

  Sm90BackwardStorage<Config>& smem_;
  const Sm90BackwardArgs& args_;
  const Sm90BackwardItem item_;  // in registers, because reads of shared memory are slow while products run
  BackwardLoads<Config> loads_;
  int warp_ = uniform(static_cast<int>(threadIdx.x) / 32);
  BackwardSegment load_at_ = {};  // query tile that is loaded next
  int loaded_ = 0;                // number of steps whose loads have been issued
  int64 stats_row_ = -1;          // first padded row of the tile whose turn this thread has not ended yet, or -1; valid
                                  // only in the thread that adds
  uint32 turn_ = 0;
  bool has_turn_ = true;  // false if the sums are staged in shared memory but wait for their turn
};

}  // namespace attend
