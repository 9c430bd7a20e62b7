// The loading warps of sm90_backward_wide_queries.cuh.
#pragma once

#include "sm90_backward_load.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// Loads the bias tiles, each as soon as its buffer is free. One thread runs this function.
template <class Config>
__device__ __forceinline__ void load_wide_query_terms(Sm90BackwardWideQueriesStorage<Config>& smem,
                                                      const Sm90BackwardArgs& args) {
  using Storage = Sm90BackwardWideQueriesStorage<Config>;
  const BackwardRowBlock& block = smem.block;
  uint32 number = 0;
#pragma unroll 1
  for (int tile = block.rows.tile; tile < block.rows.tile_end; ++tile, ++number) {
    const uint32 stage = stage_of<Storage::kStagesTerms>(number);
    // Wait until the previous bias tile has been read.
    smem.terms_empty[stage].wait(parity_of<Storage::kStagesTerms>(number) ^ 1);
    load_wide_terms<Storage::kWarpgroups>(&smem.terms[stage * Storage::kWarpgroups], args, smem.terms_full[stage],
                                          tile * Config::kBlockN, block.rows.row, block.head,
                                          static_cast<int>(block.span.batch));
  }
}

// If kIsK is set, loads q, and then the tiles of k. Otherwise loads dout, and then the tiles of v. Each tile is loaded
// as soon as its buffer is free. One warp runs this function.
template <class Config, bool kIsK>
__device__ __forceinline__ void load_wide_queries(Sm90BackwardWideQueriesStorage<Config>& smem,
                                                  const Sm90BackwardArgs& args) {
  using Storage = Sm90BackwardWideQueriesStorage<Config>;
  using Shape = BackwardShape<Config>;
  const BackwardRowBlock& block = smem.block;
  constexpr int kDepth = kIsK ? Shape::kDepth : Shape::kDepthV;
  constexpr int kStages = kIsK ? Storage::kStagesK : Storage::kStagesV;
  if (block.rows.tile_end <= block.rows.tile) return;
    // Rows beyond the sequence may hold any data, because they only affect their own rows of dq, which are not stored.
#pragma unroll
  for (int i = 0; i < Storage::kWarpgroups; ++i) {
    const PanelPlace at = PanelPlace::of(block.span.query_place(block.rows.row + i * kWarpgroupRows), block.head);
    BackwardTileLoads<Config> rows(smem.tail_full[0]);
    if constexpr (kIsK) {
      rows.template load<kDepth, kWarpgroupRows>(smem.q[i], args.q_map, smem.q_full, at, kWarpgroupRows);
    } else {
      rows.template load<kDepth, kWarpgroupRows>(smem.dout[i], args.dout_map, smem.dout_full, at, kWarpgroupRows);
    }
  }
  BackwardTileLoads<Config> loads(smem.tail_full[kIsK ? 0 : 1]);
  const auto list = block.list<Config>(args);
  const int head_k = block.head / static_cast<int>(args.base.num_heads_q / args.base.num_heads_k);
  const auto seqlen_k = static_cast<int>(block.span.seqlen_k);
  int number_of_tile = list.number(block.rows.tile);
  uint32 number = 0;
#pragma unroll 1
  for (int tile = block.rows.tile; tile < block.rows.tile_end; ++tile, ++number) {
    const uint32 stage = stage_of<kStages>(number);
    const uint32 parity = parity_of<kStages>(number) ^ 1;
    const int key = number_of_tile * Config::kBlockN;
    const PanelPlace at = PanelPlace::of(block.span.keys().place(key), head_k);
    if constexpr (kIsK) {
      smem.k_empty[stage].wait(parity);  // wait until dq of the previous tile has read the buffer
      loads.template load<kDepth, Config::kBlockN>(smem.k[stage], args.k_map, smem.k_full[stage], at, seqlen_k - key);
    } else {
      smem.v_empty[stage].wait(parity);  // wait until dp of the previous tile has read the buffer
      loads.template load<kDepth, Config::kBlockN>(smem.v[stage], args.v_map, smem.v_full[stage], at, seqlen_k - key);
    }
    // This load overlaps with the wait for a buffer.
    if (tile + 1 < block.rows.tile_end) number_of_tile = list.number(tile + 1);
  }
}

}  // namespace attend
