// One of the two warp roles of sm80_backward_unmodified if kRoles is kSm80KeysOrValues. It computes dp, ds and dk. It
// gets p from the warp of the other role that computes s of the same scores (sm80_backward_unmodified_values.cuh).
#pragma once

#include "sm80_backward_unmodified_handover.cuh"
#include "sm80_backward_unmodified_scores.cuh"

namespace attend {

template <class Config>
struct Sm80KeysRole {
  using Shape = Sm80UnmodifiedShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  static constexpr int kRows = Shape::kRows;
  Sm80KeySums<Config> dk;

  // Processes all streamed tiles of a head.
  __device__ __forceinline__ void add_head(Storage& smem, const BackwardOptionArgs& args) {
#pragma unroll 1
    for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
      sm80_begin_tile(smem, args, tile);
      const auto& stage = smem.stage[sm80_buffer<Config>(tile)];
      const int first = sm80_part<Config>() * kRows;
      if (tile > smem.block.streamed.begin)
        sm80_add_dq(smem.scores.tile[kSm80DsTile], smem, args, tile - Config::kStreamed);
      if (!sm80_meets_keys(smem.block, tile, Config::kStreamed)) {
        // Waits until ds of the previous tile has been read, so that it may be overwritten.
        sm80_wait_all<Config>(kSm80ScoresBarrier);
        sm80_store_blocks<Config, kRows / kMmaDepth>(smem.scores.tile[kSm80DsTile], {}, first);
        continue;
      }
      Sm80PartScores<Config> dp;
      sm80_unmodified_dp(dp, smem, tile + first);
      // Waits until all warps have written p and have read ds of the previous tile.
      sm80_wait_all<Config>(kSm80ScoresBarrier);
      if (sm80_is_whole(smem.block, tile + first)) {
        Sm80Handover<Config>::receive_ds(dp, smem, true);
      } else {
        Sm80Handover<Config>::receive_ds(dp, smem, false);
      }
      add_keys(dp, smem, stage.rows, first);
    }
  }

  [[nodiscard]] static __device__ __forceinline__ int last_ds_tile(int /*tile*/) {
    return kSm80DsTile;
  }

  __device__ __forceinline__ void write(Storage& smem, const BackwardOptionArgs& args) const {
    sm80_write_keys(smem, args, dk);
  }

 private:
  // Stores ds to shared memory for dq, and adds ds^T q to dk. Warps that share keys also read each other's ds from
  // shared memory.
  __device__ __forceinline__ void add_keys(const Sm80PartScores<Config>& ds, Storage& smem,
                                           const typename Storage::StreamedTile& q, int first) {
    Sm80PartOperands<Config> x;
    sm80_pack<Config>(x, ds);
    sm80_store_blocks<Config>(smem.scores.tile[kSm80DsTile], x, first);
    if constexpr (Config::kParts == 1) {
      dk.add(x, q, 0);
    } else {
      // Waits until the warps that share these keys have written ds.
      smem.pairs.of_keys[sm80_key_warp<Config>()].arrive_and_wait();
      dk.add_shared(smem.scores.tile[kSm80DsTile], q);
    }
  }
};

}  // namespace attend
