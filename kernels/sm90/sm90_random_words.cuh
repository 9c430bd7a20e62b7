// The warp that prepares random words for dropout. Without dropout this warp would be idle. For each key tile it
// computes the per-key part of the Philox state (factored_philox.cuh), while TMA loads k of the tile. When k has
// arrived, consumers read this part and compute the remaining rounds.
#pragma once

#include "factored_philox.cuh"
#include "sm90_work.cuh"

namespace attend {

// Iterates over query tiles and key tiles in the same order as the loading warp.
template <class Config>
struct Sm90RandomWords {
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  RingPlace<Config::kStages> k_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};

  // Prepares the key tiles of one query tile, in the order in which load_k() loads them. Each lane computes one quad of
  // keys at a time.
  __device__ __forceinline__ void prepare(const Sm90Work& work) {
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles tiles = places_of_block<Config>(args, list, sm90_mask<Config>(args.options, work), work);
    const ScoreRules<Config> rules = sm90_rules<Config>(args, work);
#pragma unroll 1
    for (int place = tiles.end - 1; place >= tiles.begin; --place) {
      const TileRules<Config> tile = rules.tile(work.row, int64{list.number(place)} * Config::kBlockN);
      const auto first = static_cast<uint32>(tile.first_key / 4);
      // Wait until each consumer has read the previous tile of this buffer.
      smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);
      for (uint32 quad = threadIdx.x % 32; quad < Config::kBlockN / 4; quad += 32) {
        smem.quads.of_tile[k_at.buffer()][quad] = PhiloxQuad::of(tile.drop_mask, first + quad);
      }
      __syncwarp();  // all quads are written, so consumers that wait for k may read them
      arrive_as_warp(smem.k_full[k_at.buffer()]);
      k_at.advance();
    }
  }

  __device__ __forceinline__ void run() {
    for (;;) {
      // Wait until the loading warp has written the next query tile.
      smem.work_full[work_at.buffer()].wait(work_at.parity());
      const Sm90Work work = smem.work[work_at.buffer()];
      __syncwarp();  // all lanes have read the query tile, so it may be overwritten
      arrive_as_warp(smem.work_empty[work_at.buffer()]);
      work_at.advance();
      if (work.sequence == Sm90Work::kNoWork) return;
      prepare(work);
    }
  }
};

}  // namespace attend
