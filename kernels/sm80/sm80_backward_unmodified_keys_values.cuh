// The role kSm80KeysAndValues of sm80_backward_unmodified. Each warp computes s, dp, dk and dv of its keys.
#pragma once

#include "sm80_backward_unmodified_scores.cuh"

namespace attend {

template <class Config>
struct Sm80KeysAndValuesRole {
  using Shape = Sm80UnmodifiedShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  using ScoreTile = typename Storage::ScoreTile;
  static constexpr int kRows = Shape::kRows;
  Sm80ValueSums<Config> dv;
  Sm80KeySums<Config> dk;

  // Processes all streamed tiles of a head. While ds of one tile is written to one buffer, dq is computed from ds of
  // the previous tile in the other buffer.
  __device__ __forceinline__ void add_head(Storage& smem, const BackwardOptionArgs& args) {
#pragma unroll 1
    for (int tile = sm80_first_tile(smem.block); tile < smem.block.streamed.end; tile += Config::kStreamed) {
      sm80_begin_tile(smem, args, tile);
      const int at = sm80_buffer<Config>(tile);
      if (tile > smem.block.streamed.begin) sm80_add_dq(smem.scores.tile[1 - at], smem, args, tile - Config::kStreamed);
#pragma unroll 1
      for (int row = tile; row < tile + Config::kStreamed; row += kRows) {
        if (sm80_meets_keys(smem.block, row, kRows)) {
          add_rows(smem, args, smem.scores.tile[at], row);
        } else {
          sm80_store_blocks<Config, kRows / kMmaDepth>(smem.scores.tile[at], {}, row % Config::kStreamed);
        }
      }
    }
  }

  // Returns the index of the tile of scores that holds ds of a head's last streamed tile.
  [[nodiscard]] static __device__ __forceinline__ int last_ds_tile(int tile) {
    return sm80_buffer<Config>(tile);
  }

  __device__ __forceinline__ void write(Storage& smem, const BackwardOptionArgs& args) const {
    sm80_write_keys(smem, args, dk);
    sm80_write_values(smem, dv);
  }

 private:
  // Processes kRows streamed rows. `row` is the first one, as an index in the sequence.
  __device__ __forceinline__ void add_rows(Storage& smem, const BackwardOptionArgs& args, ScoreTile& ds_tile, int row) {
    const auto& stage = smem.stage[sm80_buffer<Config>(row)];
    const int first = row % Config::kStreamed;
    Sm80PartScores<Config> s, dp;
    Sm80PartOperands<Config> x;
    sm80_unmodified_s(s, smem, row);
    sm80_unmodified_dp(dp, smem, row);
    if (!sm80_is_whole(smem.block, row)) {
      sm80_unmodified_mask(s, smem.block, row);
      sm80_unmodified_hide<Config>(dp, s);
    }
    sm80_unmodified_p(s, smem, args.base.scale, row);
    sm80_pack<Config>(x, s);
    dv.add(x, stage.rows_v, first);
    sm80_unmodified_ds<Config>(dp, s);
    sm80_pack<Config>(x, dp);
    sm80_store_blocks<Config>(ds_tile, x, first);
    dk.add(x, stage.rows, first);
  }
};

}  // namespace attend
