// Rung 06, fa2_naive: uses FlashAttention-2's loop order. A block keeps its rows and loops over tiles of keys, with o
// in registers.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, d and d_v up to 128, full and causal masks, grouped heads, and every architecture.
// Before:   In rung 05, flash_2d, the outer loop runs over tiles of keys, and the inner loop over rows. o, m and l are
//           read and written for each tile.
// After:    The loops are swapped, and each tile of rows has a block. o stays in registers until the end, and is
//           divided by l once. m and l are in shared memory.
// Why:      A tile of keys no longer causes a load of q, a load of o and a store of o, which are 12 bytes per element.
//           In return, each tile of rows reads k and v from the L2 cache. There are seqlen_q / kBlockM times as many
//           blocks, so every multiprocessor works for any batch. At d = 64 a multiprocessor has three blocks, and one
//           computes while others wait at barriers.
// Costs:    There are 0.5 loads from shared memory for each fused multiply-add, as in rung 05. S is written to shared
//           memory, read, and written as P. Four barriers separate these phases.
// Measured: 21.8 TFLOP/s at d = 64 and 24.8 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. With 1 x 16
//           heads, 16384 rows and keys, and d = 64, the rung reaches 22.0. H200, CUDA 13.0.
// Run:      `attend run --compute fa2_naive --data DIR`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1.
#pragma once

#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/score_rows.cuh"

namespace attend {

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head.
template <class Config>
__device__ void fa2_naive_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockM <= Config::kThreads);
  using Grid = ThreadGrid<Config>;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, head);
  const auto q = head_matrix<const float>(args.q, args.q_stride, batch, head, args.seqlen_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, head_k, args.seqlen_k);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, head_k, args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  auto& shared = shared_storage<ScoreRowsStorage<Config>, Config>();

  const int64 row_begin = tile * Config::kBlockM;
  const int num_rows = static_cast<int>(min(args.seqlen_q - row_begin, int64{Config::kBlockM}));
  const int thread = static_cast<int>(threadIdx.x);
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + num_rows).end;

  load_tile<Config>(shared.q, q, row_begin, {Config::kHeadDim, Config::kHeadDim});
  if (thread < Config::kBlockM) {
    shared.row_max[thread] = -kInfinity;
    shared.row_sum[thread] = 0.0f;
  }
  float o_frag[Grid::kRows][Grid::kCols] = {};
  for (int64 key_begin = 0; key_begin < key_end; key_begin += Config::kBlockN) {
    __syncthreads();  // waits until all threads have finished with the previous tile and its P, which may then be
                      // overwritten
    shared.load_keys(k, v, key_begin);
    __syncthreads();  // waits until the tile has arrived, and in the first iteration also q; they may then be read
    shared.compute_scores(mask, row_begin, key_begin, args.scale);
    __syncthreads();  // waits until S is complete; warps may then read full rows
    shared.update_softmax();
    __syncthreads();  // waits until P and the statistics are complete; they may then be read
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
#pragma unroll
      for (int c = 0; c < Grid::kCols; ++c) o_frag[i][c] *= shared.rescale[Grid::row(i)];
    }
    Grid::multiply_pv(o_frag, shared.s, shared.v);
  }

  __syncthreads();  // waits until the statistics are initialised, in case there is no tile of keys
  Grid::for_each_output(o_frag, num_rows, [&](int row, int col, float& value) {
    o.row(row_begin + row)[col] = value * inverse_or_zero(shared.row_sum[row]);
  });
  if (args.lse != nullptr && thread < num_rows) {
    args.lse[args.lse_stride.offset(batch, head, row_begin + thread)] =
        shared.row_max[thread] + logf(shared.row_sum[thread]);
  }
}

}  // namespace attend
