// The fourth warpgroup of the sm90 backward pass at 64 columns: it loads and computes dq.
//
// Three warpgroups compute, 144 registers each, and 80 are left: no room for a loader of its own. So one block has one
// key block of 192 keys, and the thread that asks the copy engine does it between two products. A tile's buffers need
// no barrier to be free: when all warpgroups have stored ds of tile i, they have drained everything of tile i - 1.
#pragma once

#include "sm90_backward_load.cuh"
#include "sm90_backward_query.cuh"

namespace attend {

template <class Config>
class NarrowQueryWarpgroup {
 public:
  using Shape = BackwardShape<Config>;
  static_assert(Shape::kPasses == 1);

  __device__ __forceinline__ NarrowQueryWarpgroup(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args,
                                                  const Sm90BackwardItem& item)
      : smem_(smem), args_(args), item_(item) {}

  // All steps of the block's one item, which has at least one.
  __device__ __forceinline__ void run() {
    const uint32 group = args_.base.num_heads_q / args_.base.num_heads_k;
    const BackwardBand band = BackwardBand::of<Config>(args_.options);
    BackwardSegment at = BackwardSegment::at(item_, 0, group);
    load_first(at);
    smem_.k_full.wait(0);  // k has landed
    PipelineState<Config::kDsBuffers> ds_at;
#pragma unroll 1
    for (int step = 0; step < item_.end; ++step) {
      float acc[32];
      const auto wait_ds = [&](int warpgroup) { smem_.ds_full[ds_at.stage][warpgroup].wait(ds_at.parity); };
      multiply_ds_k<Config, Shape::kWarpgroups>(acc, smem_, ds_at.stage, 0, wait_ds);
      if (threadIdx.x == 0 && step > 0) load_next(loaded_ < item_.end);  // into the buffers of the step before
      __syncwarp();
      arrive_as_warp(smem_.ds_empty[ds_at.stage]);
      add_pass(acc, backward_stats_row(args_, item_, at.head, at.tile), blocks_before<Config>(item_, band, at.tile));
      ds_at.advance();
      if (++at.tile == at.tile_end && step + 1 < item_.end) at = BackwardSegment::at(item_, step + 1, group);
    }
    if (threadIdx.x % 32 == 0) bulk_wait();
  }

 private:
  __device__ __forceinline__ void load_first(const BackwardSegment& at) {
    load_at_ = at;
    if (threadIdx.x != 0) return;
    const BackwardLoads<Config> loads = {smem_, args_};
    loads.load_k(item_);
    loads.load_q(item_, at.head, at.tile, 0);
    loads.load_v(item_);
    loads.load_dout(item_, at.head, at.tile, 0);
    step_loads();
    for (int i = 1; i < Config::kStages; ++i) load_next(i < item_.end);
  }

  // q and dout of the next step that is not under way. By one thread.
  __device__ __forceinline__ void load_next(bool exists) {
    if (!exists) return;
    const BackwardLoads<Config> loads = {smem_, args_};
    loads.load_dout(item_, load_at_.head, load_at_.tile, loaded_ % Config::kStages);
    loads.load_q(item_, load_at_.head, load_at_.tile, loaded_ % Config::kStages);
    step_loads();
  }
  __device__ __forceinline__ void step_loads() {
    if (++loaded_ == item_.end) return;
    if (++load_at_.tile == load_at_.tile_end) {
      load_at_ = BackwardSegment::at(item_, loaded_, args_.base.num_heads_q / args_.base.num_heads_k);
    }
  }

  // This warp's 16 rows of dq, added to the sums by one of its threads.
  __device__ __forceinline__ void add_pass(const float (&acc)[32], int64 stats_row, uint32 turn) {
    constexpr int kFloats = Shape::kPassFloats / 4;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float* const staged = smem_.dq[0] + warp_part_of_pass<Config>(warp);
    if (threadIdx.x % 32 == 0) bulk_wait_read();  // the pass before has been read
    __syncwarp();
    stage_accumulator(acc, staged);
    fence_smem_for_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    uint32* const counter = args_.dq_turns + stats_row / kBackwardRows * kBackwardTurns + warp;
    if constexpr (Config::kIsDeterministic) wait_turn(counter, turn);
    bulk_add(args_.dq_sums + stats_row * Shape::kDepth + warp * kFloats, staged, kFloats * 4);
    bulk_commit();
    if constexpr (Config::kIsDeterministic) end_turn(counter, turn);
  }

  Sm90BackwardStorage<Config>& smem_;
  const Sm90BackwardArgs& args_;
  const Sm90BackwardItem& item_;
  BackwardSegment load_at_ = {};  // of the next loads
  int loaded_ = 0;                // steps whose loads are under way
};

}  // namespace attend
