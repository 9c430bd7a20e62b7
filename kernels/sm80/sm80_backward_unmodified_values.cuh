// One of the two warp roles of sm80_backward_unmodified if kRoles is kSm80KeysOrValues. It computes s, p and dv. It
// sends p to the warp of the other role that computes dp of the same scores (sm80_backward_unmodified_keys.cuh).
#pragma once

#include "sm80_backward_unmodified_handover.cuh"
#include "sm80_backward_unmodified_scores.cuh"

namespace attend {

template <class Config>
struct Sm80ValuesRole {
  using Shape = Sm80UnmodifiedShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  Sm80ValueSums<Config> dv;

  // Processes all streamed tiles of a head.
  __device__ __forceinline__ void add_head(Storage& smem, const BackwardOptionArgs& args) {
#pragma unroll 1
    for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
      sm80_begin_tile(smem, args, tile);
      const auto& stage = smem.stage[sm80_buffer<Config>(tile)];
      const bool meets = sm80_meets_keys(smem.block, tile, Config::kStreamed);
      Sm80PartOperands<Config> p;
      if (meets) compute_p(p, smem, args, tile);
      if (tile > smem.block.streamed.begin)
        sm80_add_dq(smem.scores.tile[kSm80DsTile], smem, args, tile - Config::kStreamed);
      // Waits until all warps have written p and have read ds of the previous tile.
      sm80_wait_all<Config>(kSm80ScoresBarrier);
      if (meets) add_values(p, smem, stage.rows_v);
    }
  }

  [[nodiscard]] static __device__ __forceinline__ int last_ds_tile(int /*tile*/) {
    return kSm80DsTile;
  }

  __device__ __forceinline__ void write(Storage& smem, const BackwardOptionArgs& /*args*/) const {
    sm80_write_values(smem, dv);
  }

 private:
  // Computes p of this warp's part of the tile. Returns the rounded p, and sends p in float to the other role.
  static __device__ __forceinline__ void compute_p(Sm80PartOperands<Config>& p, Storage& smem,
                                                   const BackwardOptionArgs& args, int tile) {
    const int first = sm80_part<Config>() * Shape::kRows;
    Sm80PartScores<Config> s;
    sm80_unmodified_s(s, smem, tile + first);
    if (!sm80_is_whole(smem.block, tile + first)) sm80_unmodified_mask(s, smem.block, tile + first);
    sm80_unmodified_p(s, smem, args.base.scale, tile + first);
    Sm80Handover<Config>::send(smem, s);
    sm80_pack<Config>(p, s);
    if constexpr (Config::kParts > 1) sm80_store_blocks<Config>(smem.scores.tile[kSm80PTile], p, first);
  }

  // Adds p^T dout to dv. Warps that share keys read each other's p from shared memory.
  __device__ __forceinline__ void add_values(const Sm80PartOperands<Config>& p, const Storage& smem,
                                             const typename Storage::StreamedTileV& dout) {
    if constexpr (Config::kParts == 1) {
      dv.add(p, dout, 0);
    } else {
      dv.add_shared(smem.scores.tile[kSm80PTile], dout);
    }
  }
};

}  // namespace attend
