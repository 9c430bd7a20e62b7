// The two loading warps of sm90_backward_wide_keys.cuh.
#pragma once

#include "sm90_backward_load.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// If kIsQ is set, loads k, and then the tiles of q with their bias. Otherwise loads v, and then the tiles of dout. Each
// tile is loaded as soon as its buffer is free. One warp runs this function.
template <class Config, bool kIsQ>
__device__ __forceinline__ void load_wide_keys(Sm90BackwardWideKeysStorage<Config>& smem,
                                               const Sm90BackwardArgs& args) {
  using Storage = Sm90BackwardWideKeysStorage<Config>;
  const Sm90BackwardItem& item = smem.item;
  if (item.begin == item.end) return;
  BackwardLoads<Config, Storage> loads(smem, args, smem.tail_full[kIsQ ? 0 : 1]);
  BackwardSegment at = BackwardSegment::at(item, 0);
  loads.look_up(item, at.head, at.tile);
  if constexpr (kIsQ) {
    loads.load_k(item);
  } else {
    loads.load_v(item);
  }
#pragma unroll 1
  for (int step = 0; step < item.end; ++step) {
    const uint32 stage = stage_of<Config::kStages>(step);
    const uint32 parity = parity_of<Config::kStages>(step) ^ 1;
    if constexpr (kIsQ) {
      smem.q_empty[stage].wait(parity);  // wait until s and dk of the previous tile have read the buffer
      loads.load_q(item, at.head, at.tile, stage);
      if constexpr (Score<Config>::kAddsFromMemory) {
        if (threadIdx.x % 32 == 0) {
          load_wide_terms<1>(&smem.terms[stage], args, smem.q_full[stage], item.key, at.tile * Config::kBlockM, at.head,
                             item.batch);
        }
      }
    } else {
      smem.dout_empty[stage].wait(parity);  // wait until dp and dv of the previous tile have read the buffer
      loads.load_dout(item, at.head, at.tile, stage);
    }
    if (step + 1 == item.end) break;
    if (++at.tile == at.tile_end) at = BackwardSegment::at(item, step + 1);
    loads.look_up(item, at.head, at.tile);
  }
}

}  // namespace attend
