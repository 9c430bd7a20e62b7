// Rung 03, tiled: computes o = softmax(scale q k^T) v with a warp for each query row, and tiles of keys in shared
// memory.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, d and d_v up to 128, full and causal masks, grouped heads, and every architecture.
// Before:   In rung 02, naive, each thread reads all of k and v. An instruction that reads q accesses 32 cache lines.
// After:    A block copies kBlockN keys and values to shared memory in full sectors, and its 16 rows use them. A lane
//           computes the full scores of the keys lane, lane + 32, and so on. The warp finds the row maximum with
//           shuffles. Then each lane computes some columns of o.
// Why:      16 rows use a tile, so there are 16 times fewer global loads, and these are coalesced. The dot products and
//           exponentials of a lane's keys are independent, whereas in rung 02 each waits for the previous one. 32 lanes
//           work on a row instead of one.
// Costs:    Shared memory now limits the products. Each fused multiply-add needs 1.25 to 1.5 loads or shuffles. A
//           multiprocessor moves 32 floats a cycle but multiplies 128. Rung 01 is still faster, because its tiles of 4
//           x 4 need only 0.5 loads for each multiply-add. Rung 05 adopts such tiles.
// Measured: 10.4 TFLOP/s at d = 64 and 11.0 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. Rung 02
//           reaches 0.9. H200, CUDA 13.0.
// Run:      `attend run --compute tiled --data DIR`.
// Source:   Milakov and Gimelshein, Online normalizer calculation for softmax (2018), Algorithm 3, over tiles of keys.
#pragma once

#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/warp_row.cuh"

namespace attend {

// Computes a tile of rows, with a warp for each row. The grid has one block for each tile of kBlockM rows of every
// query head.
template <class Config>
__device__ void tiled_forward(const ForwardArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM * kWarpThreads);
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, head);
  const auto q = head_matrix<const float>(args.q, args.q_stride, batch, head, args.seqlen_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, head_k, args.seqlen_k);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, head_k, args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  auto& shared = shared_storage<WarpRowStorage<Config>, Config>();

  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int64 row_begin = tile * Config::kBlockM;
  const int64 row = row_begin + warp;  // A warp beyond the last row computes with zeros and stores nothing
  const WindowMask mask = mask_of<Config>(args);
  const int64 block_end = mask.rows(row_begin, min(row_begin + Config::kBlockM, args.seqlen_q)).end;
  const int64 row_end = min(mask.row(row).end, block_end);

  load_tile<Config>(shared.q, q, row_begin, {Config::kHeadDim, Config::kHeadDim});
  WarpRow<Config> state;
  for (int64 key_begin = 0; key_begin < block_end; key_begin += Config::kBlockN) {
    __syncthreads();  // waits until all warps have finished with the previous tile, which may then be overwritten
    shared.load_keys(k, v, key_begin);
    __syncthreads();  // waits until the tile has arrived, and in the first iteration also q; they may then be read
    const int num_keys = static_cast<int>(min(row_end - key_begin, int64{Config::kBlockN}));
    if (num_keys > 0) state.update(shared, shared.q[warp], num_keys, args.scale);
  }

  if (row >= args.seqlen_q) return;
  const float row_sum = state.total();
  state.store(o.row(row), inverse_or_zero(row_sum));
  if (args.lse != nullptr && threadIdx.x % kWarpThreads == 0) {
    args.lse[args.lse_stride.offset(batch, head, row)] = state.row_max + logf(row_sum);
  }
}

}  // namespace attend
