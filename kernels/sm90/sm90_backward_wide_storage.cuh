// Shared memory of the wide kernels in the sm90 backward pass: the tiles, and the barriers between warps.
//
// The comments of the barriers name the arrivals, in the form that sm90_backward_storage.cuh explains. All tiles have
// 64 rows, so all panels have the same size.
#pragma once

#include "../attention/score_rules.cuh"
#include "../isa/wgmma_widths.cuh"
#include "sm90_backward_layout.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_terms_tile.cuh"

namespace attend {

// stage_of() returns the buffer of tile `number` in a ring. parity_of() returns the parity of the barrier phase in
// which the tile arrives.
template <int kStages>
[[nodiscard]] __device__ __forceinline__ uint32 stage_of(uint32 number) {
  return number % kStages;
}
template <int kStages>
[[nodiscard]] __device__ __forceinline__ uint32 parity_of(uint32 number) {
  return number / kStages & 1;
}

// Destination of dk or dv, and the factor by which the accumulators are multiplied.
struct WideGradient {
  void* tensor;
  const TensorStrides& stride;
  float factor;
};

// The buffers of one tensor's tiles, as a reading warp uses them. Tiles are numbered in the order of their loads.
template <int kStages, int kElements>
struct TileRing {
  const Bits16 (&tiles)[kStages][kElements];
  Mbarrier (&full)[kStages];
  Mbarrier (&empty)[kStages];

  [[nodiscard]] __device__ __forceinline__ const Bits16* tile(uint32 number) const {
    return tiles[stage_of<kStages>(number)];
  }
  __device__ __forceinline__ void wait(uint32 number) const {  // Waits until the tile has arrived.
    full[stage_of<kStages>(number)].wait(parity_of<kStages>(number));
  }
  __device__ __forceinline__ void release(uint32 number) const {
    // Releases the buffer of the tile. All lanes of a warp must call this.
    arrive_as_warp(empty[stage_of<kStages>(number)]);
  }
};

// One bit for each entry of a thread's accumulator, set if dropout keeps the entry of p.
template <class Config>
struct Sm90BackwardKept {};
template <class Config>
requires Score<Config>::kDrops struct Sm90BackwardKept<Config> {
  uint32 words[kBackwardWideHandovers][kWarpgroup];
  static_assert(sizeof(words) == kBackwardKeptBytes);
};

// Shared memory of the kernel that computes dk and dv. The tiles have the same member names as in Sm90BackwardStorage,
// because BackwardLoads accesses the tiles of both structs.
template <class Config>
struct alignas(kSwizzleAtom) Sm90BackwardWideKeysStorage
    : Sm90TermsTiles<Score<Config>::kAddsFromMemory ? Config::kStages : 0, kBackwardTermsBytes> {
  using Shape = BackwardShape<Config>;

  Bits16 k[Config::kBlockN * Shape::kDepth];
  Bits16 v[Config::kBlockN * Shape::kDepthV];
  Bits16 q[Config::kStages][Config::kBlockM * Shape::kDepth];
  Bits16 dout[Config::kStages][Config::kBlockM * Shape::kDepthV];
  float4 p[kBackwardWideHandovers][8]
          [kWarpgroup];  // accumulators of warpgroup 1; warpgroup 2's thread with the same index reads them
  [[no_unique_address]] Sm90BackwardKept<Config> kept;  // read by the same thread as p
  float lse_log2[Config::kStages][Config::kBlockM];
  float delta[Config::kStages][Config::kBlockM];
  Sm90BackwardItem item;

  Mbarrier k_full, v_full;                   // The issuing thread arrives: k or v has arrived.
  Mbarrier tail_full[2];                     // The issuing thread arrives: a tile whose last rows must be cleared has
                                             // arrived. One barrier per loading warp.
  Mbarrier q_full[Config::kStages];          // The issuing thread arrives: q and lse_log2 have arrived. If there is a
                                             // bias, it arrives again for the bias.
  Mbarrier q_empty[Config::kStages];         // 8 warps arrive: s (warpgroup 1) and dk (warpgroup 2) are complete.
                                             // Warpgroup 1 has then read the bias, too.
  Mbarrier dout_full[Config::kStages];       // The issuing thread arrives: dout and delta have arrived.
  Mbarrier dout_empty[Config::kStages];      // 8 warps arrive: dp (warpgroup 2) and dv (warpgroup 1) are complete.
  Mbarrier p_full[kBackwardWideHandovers];   // The 4 warps of warpgroup 1 arrive: p of the tile and its dropout
                                             // decisions are written.
  Mbarrier p_empty[kBackwardWideHandovers];  // The 4 warps of warpgroup 2 arrive: p has been read and may be
                                             // overwritten.
  BackwardSeenTiles<Config> seen;            // needs no extra memory, because it lies in the last, partly used kilobyte

  [[nodiscard]] __device__ __forceinline__ auto q_ring() {
    return TileRing<Config::kStages, Config::kBlockM * Shape::kDepth>{q, q_full, q_empty};
  }
  [[nodiscard]] __device__ __forceinline__ auto dout_ring() {
    return TileRing<Config::kStages, Config::kBlockM * Shape::kDepthV>{dout, dout_full, dout_empty};
  }

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    k_full.init(1);
    v_full.init(1);
    for (int i = 0; i < 2; ++i) tail_full[i].init(1);
    for (int i = 0; i < Config::kStages; ++i) {
      q_full[i].init(Score<Config>::kAddsFromMemory ? 2 : 1);
      q_empty[i].init(arrivals_of_warps(8));
      dout_full[i].init(1);
      dout_empty[i].init(arrivals_of_warps(8));
    }
    for (int i = 0; i < kBackwardWideHandovers; ++i) {
      p_full[i].init(arrivals_of_warps(4));
      p_empty[i].init(arrivals_of_warps(4));
    }
    mbarrier_init_fence();
  }
};

// Buffers in which blocks of a cluster exchange ds if their sequences share a bias. They hold the chunks that this
// thread block sums. Each thread of this block reads the values that the threads with the same index in the other
// blocks wrote. The storage derives from this class, because an empty base class needs no space.
template <class Config>
struct Sm90BackwardDsChunks {};
template <class Config>
requires(BackwardShape<Config>::kTile.dterms_buffers > 0) struct Sm90BackwardDsChunks<Config> {
  float4 ds[BackwardShape<Config>::kTile.dterms_buffers][kBackwardWideQueryWarpgroups]
           [backward_dterms_chunks(Config::kDtermsBlocks)][Config::kDtermsBlocks][kWarpgroup];
};

// Shared memory of the kernel that computes dq.
template <class Config>
struct alignas(kSwizzleAtom) Sm90BackwardWideQueriesStorage
    : Sm90TermsTiles<BackwardShape<Config>::kTile.terms_stages * kBackwardWideQueryWarpgroups, kBackwardTermsBytes>,
      Sm90BackwardDsChunks<Config> {
  using Shape = BackwardShape<Config>;
  static constexpr int kWarpgroups = kBackwardWideQueryWarpgroups;
  static constexpr int kStagesTerms = Score<Config>::kAddsFromMemory ? Shape::kTile.terms_stages : 1;
  static constexpr int kBuffersDs = Shape::kTile.dterms_buffers;
  static constexpr int kStagesK = kBackwardWideKeyStages;
  static constexpr int kStagesV = Shape::kTile.v_stages;

  Bits16 q[kWarpgroups][kWarpgroupRows * Shape::kDepth];
  Bits16 dout[kWarpgroups][kWarpgroupRows * Shape::kDepthV];
  Bits16 k[kStagesK][Config::kBlockN * Shape::kDepth];
  Bits16 v[kStagesV][Config::kBlockN * Shape::kDepthV];
  BackwardRowBlock block;

  Mbarrier q_full, dout_full;  // The issuing thread arrives once for each warpgroup's rows: q or dout has arrived.
  Mbarrier tail_full[2];       // The issuing thread arrives: a tile has arrived whose last rows must be cleared. One
                               // barrier per loading warp.
  Mbarrier k_full[kStagesK];   // The issuing thread arrives: k has arrived.
  Mbarrier k_empty[kStagesK];  // 8 warps arrive: dq of the tile is complete, so k may be overwritten.
  Mbarrier v_full[kStagesV];   // The issuing thread arrives: v has arrived.
  Mbarrier v_empty[kStagesV];  // 8 warps arrive: dp of the tile is complete, so v may be overwritten.
  Mbarrier terms_full[kBackwardTermsStages];               // The issuing thread arrives: the bias of both warpgroups
                                                           // has arrived.
  Mbarrier terms_empty[kBackwardTermsStages];              // 8 warps arrive: the bias has been read and may be
                                                           // overwritten.
  Mbarrier ds_full[kBackwardDtermsBuffers][kWarpgroups];   // One thread arrives: ds of the cluster's other blocks has
                                                           // arrived.
  Mbarrier ds_empty[kBackwardDtermsBuffers][kWarpgroups];  // 4 warps of each block arrive: the sums have been read.

  [[nodiscard]] __device__ __forceinline__ auto k_ring() {
    return TileRing<kStagesK, Config::kBlockN * Shape::kDepth>{k, k_full, k_empty};
  }
  [[nodiscard]] __device__ __forceinline__ auto v_ring() {
    return TileRing<kStagesV, Config::kBlockN * Shape::kDepthV>{v, v_full, v_empty};
  }

  // Initialises the barriers. One thread must call this, and the block must synchronise afterwards.
  __device__ __forceinline__ void init_barriers() {
    q_full.init(kWarpgroups);
    dout_full.init(kWarpgroups);
    for (int i = 0; i < 2; ++i) tail_full[i].init(1);
    for (int i = 0; i < kStagesK; ++i) {
      k_full[i].init(1);
      k_empty[i].init(arrivals_of_warps(8));
    }
    for (int i = 0; i < kStagesV; ++i) {
      v_full[i].init(1);
      v_empty[i].init(arrivals_of_warps(8));
    }
    for (int i = 0; i < kBackwardTermsStages; ++i) {
      terms_full[i].init(1);
      terms_empty[i].init(arrivals_of_warps(8));
    }
    for (int i = 0; i < kBuffersDs; ++i) {
      for (int w = 0; w < kWarpgroups; ++w) {
        ds_full[i][w].init(1);
        ds_empty[i][w].init(arrivals_of_warps(4) * Config::kDtermsBlocks);
      }
    }
    mbarrier_init_fence();
  }
};

// Factor by which dp is multiplied when ds is computed, in the units of Sm90BackwardUnits. delta must already contain
// this factor. With a transform, p contains a quarter of the derivative, so the factor is 4 times larger.
template <class Config>
constexpr float kScoreGradientUnit = (Score<Config>::kTransforms ? 4.0f : 1.0f) *
                                     sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits -
                                                        sm90_backward_units(Config::kElement).ds_bits);
template <class Config>
[[nodiscard]] __device__ __forceinline__ float wide_score_gradient(float p, float dp, float delta) {
  return times_slope<Config>(fmaf(dp, kScoreGradientUnit<Config>, -delta), p);
}

}  // namespace attend
