// Rung 04, fa1: uses FlashAttention's first loop order. The outer loop runs over tiles of keys, and the inner loop over
// rows. Between tiles, o is stored in memory.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, d and d_v up to 128, full and causal masks, grouped heads, and every architecture.
// Before:   In rung 03, tiled, a block has 16 rows, and loads every tile of keys for them.
// After:    A block has an entire head, and loads a tile of keys once for all rows. o, m and l of the rows are stored
//           in memory, m and l in the workspace. These arrays are read, rescaled and written again for each tile.
// Why:      A tile of keys is copied to shared memory, between two barriers, once for each head instead of once for
//           every 16 rows. This gives the small gain over rung 03. Compared with rung 01, the paper's loop order does
//           not store S and P, which saves up to 24 bytes of traffic for each score. It adds 12 bytes of q and o for
//           each column, row and tile of keys. At d = 64, this is 6 bytes for each score.
// Costs:    The grid has only batch * heads blocks. With 128 blocks on 132 multiprocessors, the rung is faster than
//           rung 03. With 16 blocks it is 7 times slower. Rung 06 swaps the loops back.
// Measured: 11.5 TFLOP/s at d = 64 and 12.0 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. With 1 x 16
//           heads, 16384 rows and keys, and d = 64, the rung reaches 1.5. H200, CUDA 13.0.
// Run:      `attend run --compute fa1 --data DIR`.
// Source:   Dao, Fu, Ermon, Rudra, Re, FlashAttention (2022), Algorithm 1.
#pragma once

#include "../common/numbers.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/row_statistics.cuh"
#include "pieces/warp_row.cuh"

namespace attend {

// Computes one head. The grid has one block for each query head. Warp w has the rows w, w + kBlockM, and so on, for all
// tiles of keys. So threads exchange nothing through global memory.
template <class Config>
__device__ void fa1_forward(const ForwardArgs& args) {
  static_assert(Config::kThreads == Config::kBlockM * kWarpThreads);
  const uint32 batch = blockIdx.x / args.num_heads_q;
  const uint32 head = blockIdx.x % args.num_heads_q;
  const uint32 head_k = key_head_of(args, head);
  const auto q = head_matrix<const float>(args.q, args.q_stride, batch, head, args.seqlen_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, head_k, args.seqlen_k);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, head_k, args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  auto* const statistics = static_cast<RowStatistics*>(args.workspace) + int64{blockIdx.x} * args.seqlen_q;
  auto& shared = shared_storage<WarpRowStorage<Config>, Config>();

  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  for (int64 row = warp; row < args.seqlen_q; row += Config::kBlockM) {
    WarpRow<Config>{}.store(o.row(row), 0.0f);
    if (lane == 0) statistics[row] = {-kInfinity, 0.0f};
  }

  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.row(args.seqlen_q - 1).end;
  for (int64 key_begin = 0; key_begin < key_end; key_begin += Config::kBlockN) {
    __syncthreads();  // waits until all warps have finished with the previous tile, which may then be overwritten
    shared.load_keys(k, v, key_begin);
    __syncthreads();  // waits until the tile has arrived; it may then be read
    const int64 first_row = mask.rows_of_key(key_begin).begin / Config::kBlockM * Config::kBlockM;
    for (int64 row = first_row + warp; row < args.seqlen_q; row += Config::kBlockM) {
      const int num_keys = static_cast<int>(min(mask.row(row).end - key_begin, int64{Config::kBlockN}));
      if (num_keys <= 0) continue;
      for (int col = lane; col < Config::kHeadDim; col += kWarpThreads) shared.q[warp][col] = q.row(row)[col];
      const auto [m_old, l_old] = statistics[row];
      WarpRow<Config> state;
      state.row_max = m_old;
      state.row_sum = lane == 0 ? l_old : 0.0f;  // the row sum is spread over the warp's lanes
      state.load(o.row(row), l_old);             // o in memory is divided by l, as in the paper
      __syncwarp();                              // waits until all lanes have stored their columns of q; the row may
                                                 // then be read
      state.update(shared, shared.q[warp], num_keys, args.scale);
      const float l_new = state.total();
      state.store(o.row(row), inverse_or_zero(l_new));
      if (lane == 0) statistics[row] = {state.row_max, l_new};
      __syncwarp();  // waits until all lanes have finished with q; the next row may then overwrite it
    }
  }

  if (args.lse == nullptr || lane != 0) return;
  for (int64 row = warp; row < args.seqlen_q; row += Config::kBlockM) {
    args.lse[args.lse_stride.offset(batch, head, row)] = statistics[row].row_max + logf(statistics[row].row_sum);
  }
}

}  // namespace attend
