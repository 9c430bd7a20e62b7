// Last kernel of sm80_backward. It computes the gradient of a bias that has a separate value for every query row.
//
//   dterms = ds, summed over the batch entries and heads that share a bias entry
//
// Work     Each thread block computes a tile of dterms with kOwned rows and kStreamed keys. It iterates over the batch
//          entries and heads that share the tile, always in the same order, and computes their p and ds again.
// Called   if dterms is requested (src/cuda/launch/sm80_backward.cpp).
#pragma once

#include "../attention/dterms_reduce.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

// Adds ds of one tile of one head to `sum`. The block's work must be set.
template <class Config>
__device__ __forceinline__ void sm80_add_dterms_tile(Sm80Scores<Config>& sum, Sm80BackwardStorage<Config>& smem,
                                                     const BackwardOptionArgs& args, int key) {
  using Shape = Sm80BackwardShape<Config>;
  const Sm80BackwardBlock<Config>& block = smem.block;
  if (!block.streamed.meets(key, Config::kStreamed)) return;
  if (!block.rules.map.template sees_any<Shape::kOwned, Config::kStreamed>(block.work.owned, key)) return;
  sm80_load_owned(smem, args, block.span, block.head, block.work.owned);
  sm80_send_streamed(smem, args, key, 0);
  cp_async_commit();
  cp_async_wait<0>();  // waits for this thread's copies of the tiles
  __syncthreads();     // waits for the copies of all threads, so all may read the tiles
  if (!block.meets(static_cast<int>(threadIdx.x) / 32, sm80_first_owned<Config>(0), key)) return;
  Sm80Scores<Config> p, slope, ds;
  uint32 kept[Config::kRowGroups][kKeptWords<Shape::kScores>];
  sm80_multiply_owned<Config, Sm80Product::kScores>(p, smem.owned, smem.stage[0].rows, 0);
  if (sm80_all_visible(block, key)) {
    sm80_make_p<true>(p, slope, kept, smem, key);
  } else {
    sm80_make_p<false>(p, slope, kept, smem, key);
  }
  sm80_multiply_owned<Config, Sm80Product::kGradients>(ds, smem.owned_v, smem.stage[0].rows_v, 0);
  sm80_make_ds<false>(ds, p, kept, smem, key, kept_scale<Config>(args.options));
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Shape::kScores; ++i) sum[r][i] += ds[r][i];
  }
}

// Stores those entries of a tile that exist. `row` and `key` are the tile's first row and first key.
template <class Config>
__device__ __forceinline__ void sm80_store_dterms(const BackwardOptionArgs& args, const Sm80Scores<Config>& sum,
                                                  uint32 batch, uint32 head, int64 row, int64 key) {
  using Element = DtermsElementOf<Config>;
  auto* dterms =
      static_cast<typename Element::Storage*>(args.dterms) + args.dterms_stride.offset(batch, head, row) + key;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kStep / 2; ++i) {
      const int at_row = sm80_first_owned<Config>(r) + accumulator_row(lane) + i / 2 % 2 * kRowHalf;
      const int at_key = accumulator_column(lane) + i / 4 * kColumnsOfTile + i % 2;
      if (row + at_row >= args.base.seqlen_q || key + at_key >= args.base.seqlen_k) continue;
      dterms[at_row * args.dterms_stride.row + at_key] = Element::round(sum[r][i]);
    }
  }
}

// Grid: for every batch entry and head of dterms, one block per tile of kOwned rows and kStreamed keys. Blocks of
// adjacent keys are adjacent.
template <class Config>
__device__ void sm80_dterms(const BackwardOptionArgs& args) {
  using Shape = Sm80BackwardShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  static_assert(sizeof(Storage) == Config::kSmemBytes && Config::kStep == Config::kStreamed);
  extern __shared__ __align__(kSwizzleAtom) unsigned char smem_bytes[];
  auto& smem = *reinterpret_cast<Storage*>(smem_bytes);

  const BackwardArgs& base = args.base;
  const auto key_tiles = static_cast<uint32>(num_tiles(base.seqlen_k, Config::kStreamed));
  const auto row_tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Shape::kOwned));
  const int key = static_cast<int>(blockIdx.x % key_tiles) * Config::kStreamed;
  const auto [terms_batch, terms_head, tile] = HeadTile::of_block(blockIdx.x / key_tiles, row_tiles, args.dterms_heads);
  const int64 row = tile * Shape::kOwned;
  const auto batches = BroadcastRange::of(terms_batch, args.dterms_batch, base.batch);
  const auto heads = BroadcastRange::of(terms_head, args.dterms_heads, base.num_heads_q);
  Sm80Scores<Config> sum = {};
#pragma unroll 1
  for (uint32 batch = batches.begin; batch < batches.end; ++batch) {
#pragma unroll 1
    for (uint32 head = heads.begin; head < heads.end; ++head) {
      // Waits until every warp has finished the previous head, so that its tiles and the block's work may be
      // overwritten.
      __syncthreads();
      const SequenceSpan span = {batch, 0, 0, base.seqlen_q, base.seqlen_k};
      Sm80BackwardBlock<Config>::make(smem.block, args, {batch, head, row}, span, head);
      __syncthreads();  // waits until the block's work is set
      sm80_add_dterms_tile(sum, smem, args, key);
    }
  }
  sm80_store_dterms<Config>(args, sum, terms_batch, terms_head, row, key);
}

}  // namespace attend
