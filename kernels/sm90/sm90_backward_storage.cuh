// Shared memory of the sm90 backward pass: tiles, and the barriers between the warpgroups.
//
// The comment of each barrier names the arrivals and then what is legal or true afterwards. "Announced" means one
// arrival, by the thread that issues the copy, with the expected bytes. "4 warps" means one arrival of each warp.
#pragma once

#include "../common/element.cuh"
#include "../isa/mbarrier.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/shared_storage.cuh"
#include "sm90_backward_layout.cuh"
#include "sm90_backward_work.cuh"

namespace attend {

// Constants that follow from a Config.
template <class Config>
struct BackwardShape {
  static constexpr Sm90BackwardTile kTile = kBackwardTile<Config>;
  static constexpr int kDepth = kTile.depth;
  static constexpr int kDepthV = kTile.depth_v;
  static constexpr int kWarpgroups = Config::kBlockN / kWarpgroupRows;  // computing warpgroups: 64 keys each
  static constexpr int kPasses = kDepth / kBackwardPassColumns;
  static constexpr int kPassFloats = kBackwardRows * kBackwardPassColumns;
  static constexpr uint32 kPassBytes = kPassFloats * 4;
  static constexpr uint32 kPanelBytesM = Config::kBlockM * kSwizzleBytes;  // of q, dout and ds
  static constexpr uint32 kPanelBytesN = Config::kBlockN * kSwizzleBytes;  // of k and v
  static_assert(Config::kBlockM == kBackwardRows && kFitsTiles<Config>);
};

// Whether a warpgroup may skip the first tile of a head. Only the persistent form does.
template <class Config>
constexpr bool kSkipsTiles =
    kBackwardTile<Config>.is_persistent&& Config::kMask != MaskKind::kFull && !has_block_mask<Config>();

// Target of a staged pass of dq.
struct alignas(16) BackwardTarget {
  float* sums;       // null: no more passes
  uint32 turn;       // kIsDeterministic: number of additions to these sums that come before. kOwnsHeads: see below
  uint32 next_turn;  // the same for the next tile's sums; kNoTurn if not known, or if no tile of this head follows
};
constexpr uint32 kNoTurn = 0xffffffffu;
// Values of `turn` with kOwnsHeads.
constexpr uint32 kAddsPass = 0, kStoresPass = 1;  // kStoresPass overwrites the sums of another head
constexpr uint32 kCompletesPasses = 2;            // not a pass: completes all passes before it
static_assert(sizeof(BackwardTarget) == kBackwardTargetBytes && sizeof(Mbarrier) == kBackwardBarrierBytes);

// With a block mask: index and visibility of the query tiles in the buffers of q. Written before q is announced.
template <class Config>
struct BackwardSeenTiles {};
template <class Config>
requires(has_block_mask<Config>()) struct BackwardSeenTiles<Config> {
  SeenRowTile<BackwardShape<Config>::kWarpgroups> of_stage[Config::kStages];
};

template <class Config>
struct alignas(kSwizzleAtom) Sm90BackwardStorage {
  using Shape = BackwardShape<Config>;
  static constexpr int kRing = kBackwardItemRing;
  static constexpr int kWarpgroups = Shape::kWarpgroups;

  Bits16 k[Config::kBlockN * Shape::kDepth];
  Bits16 v[Config::kBlockN * Shape::kDepthV];
  Bits16 q[Config::kStages][Config::kBlockM * Shape::kDepth];
  Bits16 dout[Config::kStages][Config::kBlockM * Shape::kDepthV];
  // ds: rows are query rows; one panel of 64 keys per warpgroup.
  Bits16 ds[Config::kDsBuffers][Config::kBlockN / 64][Config::kBlockM * 64];
  float dq[Config::kStagingBuffers][Shape::kPassFloats];  // (4 warps, 8, 32 lanes, 4)
  float lse_log2[Config::kStages][Config::kBlockM];
  float delta[Config::kStages][Config::kBlockM];
  Sm90BackwardItem items[kRing];
  BackwardTarget dq_target[Config::kStagingBuffers];

  Mbarrier item_full[kRing];             // 1: the item may be read
  Mbarrier item_empty[kRing];            // every warp that reads the item: it may be overwritten
  Mbarrier k_full, v_full;               // announced: k or v has arrived
  Mbarrier tail_full;                    // announced: a tile has arrived whose end must be cleared
  Mbarrier k_empty;                      // 4 warps of the query warpgroup: its last dq product has read k
  Mbarrier v_empty;                      // every computing warp: its last dp product has read v
  Mbarrier q_full[Config::kStages];      // announced: q and lse_log2 have arrived
  Mbarrier q_empty[Config::kStages];     // every computing warp: dk of the tile is done, so q may be overwritten
  Mbarrier dout_full[Config::kStages];   // announced: dout and delta have arrived
  Mbarrier dout_empty[Config::kStages];  // every computing warp: dv of the tile is done, so dout may be overwritten
  Mbarrier ds_full[Config::kDsBuffers][kWarpgroups];  // 4 warps: that warpgroup has stored its ds
  Mbarrier ds_empty[Config::kDsBuffers];              // 4 warps: the dq products have read ds, so it may be overwritten
  Mbarrier dq_full[Config::kStagingBuffers];          // 4 warps: a pass of dq and its target are staged
  Mbarrier dq_empty[Config::kStagingBuffers];         // 1: the copy engine has read the pass
  BackwardSeenTiles<Config> seen;                     // uses the rest of the last kilobyte

  // Initialises the barriers. One thread calls this; the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    for (int i = 0; i < kRing; ++i) {
      item_full[i].init(1);
      item_empty[i].init(arrivals_of_warps(4 * (kWarpgroups + 1)));
    }
    k_full.init(1);
    v_full.init(1);
    tail_full.init(1);
    k_empty.init(arrivals_of_warps(4));
    v_empty.init(arrivals_of_warps(4 * kWarpgroups));
    for (int i = 0; i < Config::kStages; ++i) {
      q_full[i].init(1);
      q_empty[i].init(arrivals_of_warps(4 * kWarpgroups));
      dout_full[i].init(1);
      dout_empty[i].init(arrivals_of_warps(4 * kWarpgroups));
    }
    for (int i = 0; i < Config::kDsBuffers; ++i) {
      for (int w = 0; w < kWarpgroups; ++w) ds_full[i][w].init(arrivals_of_warps(4));
      ds_empty[i].init(arrivals_of_warps(4));
    }
    for (int i = 0; i < Config::kStagingBuffers; ++i) {
      dq_full[i].init(arrivals_of_warps(4));
      dq_empty[i].init(1);
    }
    mbarrier_init_fence();
  }
};

// Waits until item `number` of the block's list is written, and returns it.
template <class Config>
[[nodiscard]] __device__ __forceinline__ const Sm90BackwardItem& wait_for_item(Sm90BackwardStorage<Config>& smem,
                                                                               uint32 number) {
  smem.item_full[number % kBackwardItemRing].wait(number / kBackwardItemRing & 1);
  return smem.items[number % kBackwardItemRing];
}

// Releases the item. Each warp calls this after its last read.
template <class Config>
__device__ __forceinline__ void release_item(Sm90BackwardStorage<Config>& smem, uint32 number) {
  __syncwarp();
  arrive_as_warp(smem.item_empty[number % kBackwardItemRing]);
}

}  // namespace attend
