// The loads of the sm90 backward pass, and the warp that makes them in the persistent form.
#pragma once

#include "../common/bulk_copy.cuh"
#include "../common/tma_panel.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// The four kinds of copies. All by one thread.
template <class Config>
struct BackwardLoads {
  using Shape = BackwardShape<Config>;
  static constexpr uint32 kStatsBytes = Config::kBlockM * sizeof(float);
  Sm90BackwardStorage<Config>& smem;
  const Sm90BackwardArgs& args;

  __device__ __forceinline__ void load_k(const Sm90BackwardItem& item) const {
    load_keys<Shape::kDepth>(smem.k, args.k_map, smem.k_full, item);
  }
  __device__ __forceinline__ void load_v(const Sm90BackwardItem& item) const {
    load_keys<Shape::kDepthV>(smem.v, args.v_map, smem.v_full, item);
  }
  __device__ __forceinline__ void load_q(const Sm90BackwardItem& item, int head, int tile, int stage) const {
    load_rows<Shape::kDepth>(smem.q[stage], smem.lse_log2[stage], args.q_map, args.lse_log2, smem.q_full[stage], item,
                             head, tile);
  }
  __device__ __forceinline__ void load_dout(const Sm90BackwardItem& item, int head, int tile, int stage) const {
    load_rows<Shape::kDepthV>(smem.dout[stage], smem.delta[stage], args.dout_map, args.delta, smem.dout_full[stage],
                              item, head, tile);
  }

 private:
  template <int kDepth>
  __device__ __forceinline__ void load_keys(Bits16* to, const TensorMapArg& map, Mbarrier& full,
                                            const Sm90BackwardItem& item) const {
    full.arrive_expect_bytes(Config::kBlockN * kDepth * sizeof(Bits16));
#pragma unroll
    for (int column = 0; column < kDepth; column += kPanelColumns) {
      tma_load_panel(to + column * Config::kBlockN, map, full, column, item.k_begin + item.key, item.head_k,
                     item.batch);
    }
  }
  template <int kDepth>
  __device__ __forceinline__ void load_rows(Bits16* to, float* to_stats, const TensorMapArg& map, const float* stats,
                                            Mbarrier& full, const Sm90BackwardItem& item, int head, int tile) const {
    full.arrive_expect_bytes(Config::kBlockM * kDepth * sizeof(Bits16) + kStatsBytes);
#pragma unroll
    for (int column = 0; column < kDepth; column += kPanelColumns) {
      tma_load_panel(to + column * Config::kBlockM, map, full, column, item.q_begin + tile * Config::kBlockM, head,
                     item.batch);
    }
    bulk_load(to_stats, stats + backward_stats_row(args, item, head, tile), kStatsBytes, full);
  }
};

// The loader of the persistent form: one thread that walks over the list and waits for buffers to become free. V, q and
// dout of the next item come while the last tiles of this one are computed; k follows after the last dq has read it.
template <class Config>
__device__ __forceinline__ void load_items(Sm90BackwardStorage<Config>& smem, const Sm90BackwardArgs& args) {
  const BackwardLoads<Config> loads = {smem, args};
  const uint32 group = args.base.num_heads_q / args.base.num_heads_k;
  Sm90BackwardList<Config> list(args);
  PipelineState<Config::kStages> q_at, dout_at;
  uint32 keys_parity = 1;  // a wait for the parity 1 passes a fresh barrier
#pragma unroll 1
  for (uint32 number = 0;; ++number) {
    const uint32 slot = number % kBackwardItemRing;
    // The item's readers have left the one kBackwardItemRing before.
    smem.item_empty[slot].wait(number / kBackwardItemRing % 2 ^ 1);
    Sm90BackwardItem& item = smem.items[slot];
    const bool exists = list.next(item);
    if (!exists) item.key = -1;
    smem.item_full[slot].arrive();  // releases what was written to it
    if (!exists) break;
    const auto load_q = [&](int head, int tile) {
      smem.q_empty[q_at.stage].wait(q_at.parity ^ 1);  // dk of the tile before has read it
      loads.load_q(item, head, tile, q_at.stage);
      q_at.advance();
    };
    const auto load_dout = [&](int head, int tile) {
      smem.dout_empty[dout_at.stage].wait(dout_at.parity ^ 1);  // dv of the tile before has read it
      loads.load_dout(item, head, tile, dout_at.stage);
      dout_at.advance();
    };
    const auto load_k = [&] {
      smem.k_empty.wait(keys_parity);  // dq of the item before is done
      loads.load_k(item);
    };
    const auto load_v = [&] {
      smem.v_empty.wait(keys_parity);  // dp of the item before is done
      loads.load_v(item);
    };
    const int steps = item.end - item.begin;
    if (steps == 0) {  // nothing comes, but the phases go on
      smem.k_empty.wait(keys_parity);
      smem.v_empty.wait(keys_parity);
      smem.k_full.arrive();
      smem.v_full.arrive();
      keys_parity ^= 1;
      continue;
    }
    BackwardSegment at = BackwardSegment::at(item, item.begin, group);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      // In the order in which buffers become free: v of the item before after the last dp, k after the last dq.
      if (step == 0 && number == 0) load_k();
      load_q(at.head, at.tile);
      if (step == 0 && number == 0) load_v();
      if (step == 1 && number > 0) load_k();
      load_dout(at.head, at.tile);
      if (step == 0 && number > 0) load_v();
      if (steps == 1 && number > 0) load_k();
      if (++at.tile == at.tile_end && step + 1 < steps) at = BackwardSegment::at(item, item.begin + step + 1, group);
    }
    keys_parity ^= 1;
  }
}

}  // namespace attend
