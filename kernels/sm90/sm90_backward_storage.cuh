// Shared memory of the sm90 backward pass: the tiles, and the barriers between the warpgroups.
//
// The comment of each barrier names the arrivals and states what they signal. "The issuing thread" is the thread that
// issues the copy. It arrives once and sets the number of bytes that the barrier expects. If a comment names warps,
// each of these warps arrives once.
#pragma once

#include "../common/element.cuh"
#include "../isa/mbarrier.cuh"
#include "../isa/wgmma.cuh"
#include "../tiles/shared_storage.cuh"
#include "sm90_backward_layout.cuh"
#include "sm90_backward_work.cuh"

namespace attend {

// Constants derived from a Config.
template <class Config>
struct BackwardShape {
  static constexpr Sm90BackwardTile kTile = kBackwardTile<Config>;
  static constexpr int kDepth = kTile.depth;
  static constexpr int kDepthV = kTile.depth_v;
  static constexpr int kWarpgroups = Config::kBlockN / kWarpgroupRows;  // computing warpgroups, with 64 keys each
  static constexpr int kPasses = kDepth / kBackwardPassColumns;
  static constexpr int kPassFloats = kBackwardRows * kBackwardPassColumns;
  static constexpr uint32 kPassBytes = kPassFloats * 4;
  static constexpr uint32 kPanelBytesM = Config::kBlockM * kSwizzleBytes;  // panel of q, dout or ds
  static constexpr uint32 kPanelBytesN = Config::kBlockN * kSwizzleBytes;  // panel of k or v
  static_assert(Config::kBlockM == kBackwardRows && kFitsTiles<Config>);
};

// Whether a warpgroup may skip the first query tile of a head. Only the persistent form does this.
template <class Config>
constexpr bool kSkipsTiles =
    kBackwardTile<Config>.is_persistent&& Config::kMask != MaskKind::kFull && !has_block_mask<Config>();

// Describes where a staged pass of dq is added or stored.
struct alignas(16) BackwardTarget {
  float* sums;       // address of the sums; null if there are no more passes
  uint32 turn;       // If kIsDeterministic is set, the number of additions to these sums that must precede this
                     // addition. If kOwnsHeads is set, one of the constants below
  uint32 next_turn;  // `turn` of the next tile's sums; kNoTurn if it is unknown, or if no tile of this head follows
};
constexpr uint32 kNoTurn = 0xffffffffu;
// Values of `turn` if kOwnsHeads is set.
// kAddsPass adds to the sums. kStoresPass overwrites the sums of another head.
constexpr uint32 kAddsPass = 0, kStoresPass = 1;
constexpr uint32 kCompletesPasses = 2;  // adds nothing, but waits until all earlier passes are complete
static_assert(sizeof(BackwardTarget) == kBackwardTargetBytes && sizeof(Mbarrier) == kBackwardBarrierBytes);

// With a block mask, holds the index and the visible scores of the query tiles in the buffers of q. An entry is written
// before q_full of its buffer completes.
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
  // ds has query rows as rows, and one panel of 64 keys per computing warpgroup.
  Bits16 ds[Config::kDsBuffers][Config::kBlockN / 64][Config::kBlockM * 64];
  float dq[Config::kStagingBuffers][Shape::kPassFloats];  // (4 warps, 8, 32 lanes, 4)
  float lse_log2[Config::kStages][Config::kBlockM];
  float delta[Config::kStages][Config::kBlockM];
  Sm90BackwardItem items[kRing];
  BackwardTarget dq_target[Config::kStagingBuffers];

  Mbarrier item_full[kRing];             // One thread arrives: the item may be read.
  Mbarrier item_empty[kRing];            // Every warp that reads items arrives: the item may be overwritten.
  Mbarrier k_full, v_full;               // The issuing thread arrives: k or v has arrived.
  Mbarrier tail_full;                    // The issuing thread arrives: a tile has arrived whose last rows must be
                                         // cleared.
  Mbarrier k_empty;                      // Each warp of the dq warpgroup arrives: its last dq product has read k.
  Mbarrier v_empty;                      // Each computing warp arrives: its last dp product has read v.
  Mbarrier q_full[Config::kStages];      // The issuing thread arrives: q and lse_log2 have arrived.
  Mbarrier q_empty[Config::kStages];     // Each computing warp arrives: dk of the tile is complete, so q may be
                                         // overwritten.
  Mbarrier dout_full[Config::kStages];   // The issuing thread arrives: dout and delta have arrived.
  Mbarrier dout_empty[Config::kStages];  // Each computing warp arrives: dv of the tile is complete, so dout may be
                                         // overwritten.
  Mbarrier ds_full[Config::kDsBuffers][kWarpgroups];  // The 4 warps of one computing warpgroup arrive: it has stored
                                                      // its ds.
  Mbarrier ds_empty[Config::kDsBuffers];              // The 4 warps of the dq warpgroup arrive: their products have
                                                      // read ds, so ds may be overwritten.
  Mbarrier dq_full[Config::kStagingBuffers];          // The 4 warps of the dq warpgroup arrive: a pass of dq and its
                                                      // target are staged.
  Mbarrier dq_empty[Config::kStagingBuffers];         // The reducer thread arrives: the bulk copy has read the pass.
  BackwardSeenTiles<Config> seen;                     // needs no extra memory, because it lies in the last, partly used
                                                      // kilobyte

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
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

// Waits until item `number` of this thread block's list is written. Returns the item.
template <class Config>
[[nodiscard]] __device__ __forceinline__ const Sm90BackwardItem& wait_for_item(Sm90BackwardStorage<Config>& smem,
                                                                               uint32 number) {
  smem.item_full[number % kBackwardItemRing].wait(number / kBackwardItemRing & 1);
  return smem.items[number % kBackwardItemRing];
}

// Releases an item, so that its slot may be overwritten. Each warp calls this after it has read the item for the last
// time.
template <class Config>
__device__ __forceinline__ void release_item(Sm90BackwardStorage<Config>& smem, uint32 number) {
  __syncwarp();
  arrive_as_warp(smem.item_empty[number % kBackwardItemRing]);
}

}  // namespace attend
