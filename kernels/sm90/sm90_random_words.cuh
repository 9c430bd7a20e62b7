// The warp that prepares random words for dropout; it would otherwise be idle. For each key tile it computes the
// per-key part of the Philox state (factored_philox.cuh), while the copy engine loads k of the tile. Consumers read
// this part when k has arrived, and compute the rest.
#pragma once

#include "factored_philox.cuh"
#include "sm90_work.cuh"

namespace attend {

// Iterates over the query tiles and key tiles in the producer's order.
template <class Config>
struct Sm90RandomWords {
  Sm90Storage<Config>& smem;
  const Sm90ForwardArgs& args;
  RingPlace<Config::kStages> k_at = {};
  RingPlace<kSm90WorkSlots> work_at = {};

  // Prepares the key tiles of one query tile, in the order of the producer's load_k(). A lane has a quad of keys.
  __device__ __forceinline__ void prepare(const Sm90Work& work) {
    const Sm90KeyList<Config> list = sm90_key_list<Config>(args, work);
    const Sm90KeyTiles tiles = places_of_block<Config>(args, list, sm90_mask<Config>(args.options, work), work);
    const ScoreRules<Config> rules = sm90_rules<Config>(args, work);
#pragma unroll 1
    for (int place = tiles.end - 1; place >= tiles.begin; --place) {
      const TileRules<Config> tile = rules.tile(work.row, int64{list.number(place)} * Config::kBlockN);
      const auto first = static_cast<uint32>(tile.first_key / 4);
      smem.k_empty[k_at.buffer()].wait(k_at.parity() ^ 1);  // each consumer has read the previous tile of this buffer
      for (uint32 quad = threadIdx.x % 32; quad < Config::kBlockN / 4; quad += 32) {
        smem.quads.of_tile[k_at.buffer()][quad] = PhiloxQuad::of(tile.drop_mask, first + quad);
      }
      __syncwarp();  // all quads are written: consumers that wait for k may read them
      arrive_as_warp(smem.k_full[k_at.buffer()]);
      k_at.advance();
    }
  }

  __device__ __forceinline__ void run() {
    for (;;) {
      smem.work_full[work_at.buffer()].wait(work_at.parity());  // the next tile is announced
      const Sm90Work work = smem.work[work_at.buffer()];
      __syncwarp();  // all lanes have read it: it may be overwritten
      arrive_as_warp(smem.work_empty[work_at.buffer()]);
      work_at.advance();
      if (work.sequence == Sm90Work::kNoWork) return;
      prepare(work);
    }
  }
};

}  // namespace attend
