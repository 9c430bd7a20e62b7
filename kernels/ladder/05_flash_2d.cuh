// Rung 05, flash_2d: uses FlashAttention's first loop order. The threads of a block form a grid over S and over o.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, d and d_v up to 128, full and causal masks, grouped heads, and every architecture.
// Before:   In rung 04, fa1, a warp has a row. A number of k or v that a lane reads is used in only one product.
// After:    A block has 16 columns x 32 rows of threads, each with 4 x 4 elements of S and 4 rows of o. A thread uses
//           each number of q that it reads for 4 keys, and each number of k or v for 4 rows. Between the two products S
//           lies in shared memory, where one warp computes the softmax of each row.
// Why:      Loads from shared memory were the limit. Each fused multiply-add needs 0.5 of them instead of at least
//           1.25. Loads of o start before S is computed, and overlap with this computation. With tiles of 2 x 4 this
//           overlap gave a factor of 1.3.
// Costs:    There are four barriers for each tile of rows and keys. A multiprocessor has only one block, so all its
//           warps are idle until the slowest one arrives. The loop order still reads and writes o for each tile of
//           keys. A grid of batch * heads blocks leaves multiprocessors idle.
// Measured: 16.5 TFLOP/s at d = 64 and 20.3 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. With 1 x 16
//           heads, 16384 rows and keys, and d = 64, the rung reaches 2.1. H200, CUDA 13.0.
// Run:      `attend run --compute flash_2d --data DIR`.
// Source:   Dao, Fu, Ermon, Rudra, Re, FlashAttention (2022), Algorithm 1.
#pragma once

#include "../common/numbers.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/row_statistics.cuh"
#include "pieces/score_rows.cuh"

namespace attend {

// Adds the contribution of a tile of keys to a tile of rows. Updates o in memory, which is always divided by l, and the
// statistics.
template <class Config>
__device__ __forceinline__ void update_rows(ScoreRowsStorage<Config>& shared, const HeadMatrix<const float>& q,
                                            const HeadMatrix<float>& o, RowStatistics* statistics,
                                            const WindowMask& mask, int64 row_begin, int64 key_begin, float scale) {
  using Grid = ThreadGrid<Config>;
  const int num_rows = static_cast<int>(min(q.num_rows - row_begin, int64{Config::kBlockM}));
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // waits until all threads have finished with the previous rows; q, s and the statistics may then be
                    // overwritten
  load_tile<Config>(shared.q, q, row_begin, {Config::kHeadDim, Config::kHeadDim});
  float o_frag[Grid::kRows][Grid::kCols] = {};  // loaded now, to overlap with the computation of S
  Grid::for_each_output(o_frag, num_rows, [&](int row, int col, float& to) { to = o.row(row_begin + row)[col]; });
  float old_sum[Grid::kRows] = {};
#pragma unroll
  for (int i = 0; i < Grid::kRows; ++i) {
    if (Grid::row(i) < num_rows) old_sum[i] = statistics[row_begin + Grid::row(i)].row_sum;
  }
  RowStatistics old = {-kInfinity, 0.0f};
  if (thread < num_rows) old = statistics[row_begin + thread];
  if (thread < Config::kBlockM) {
    shared.row_max[thread] = old.row_max;
    shared.row_sum[thread] = old.row_sum;
  }
  __syncthreads();  // waits until q, the keys and the statistics have arrived; they may then be read
  shared.compute_scores(mask, row_begin, key_begin, scale);
  __syncthreads();  // waits until S is complete; warps may then read full rows
  shared.update_softmax();
  __syncthreads();  // waits until P and the statistics are complete; they may then be read

#pragma unroll
  for (int i = 0; i < Grid::kRows; ++i) {
    const float old_share = old_sum[i] * shared.rescale[Grid::row(i)];
#pragma unroll
    for (int c = 0; c < Grid::kCols; ++c) o_frag[i][c] *= old_share;
  }
  Grid::multiply_pv(o_frag, shared.s, shared.v);
  Grid::for_each_output(o_frag, num_rows, [&](int row, int col, float& value) {
    o.row(row_begin + row)[col] = value * inverse_or_zero(shared.row_sum[row]);
  });
  if (thread < num_rows) statistics[row_begin + thread] = {shared.row_max[thread], shared.row_sum[thread]};
}

// Computes one head. The grid has one block for each query head.
template <class Config>
__device__ void flash_2d_forward(const ForwardArgs& args) {
  static_assert(Config::kBlockM <= Config::kThreads);
  const uint32 batch = blockIdx.x / args.num_heads_q;
  const uint32 head = blockIdx.x % args.num_heads_q;
  const uint32 head_k = key_head_of(args, head);
  const auto q = head_matrix<const float>(args.q, args.q_stride, batch, head, args.seqlen_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, head_k, args.seqlen_k);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, head_k, args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  auto* const statistics = static_cast<RowStatistics*>(args.workspace) + int64{blockIdx.x} * args.seqlen_q;
  auto& shared = shared_storage<ScoreRowsStorage<Config>, Config>();

  for (int64 row = threadIdx.x; row < args.seqlen_q; row += Config::kThreads) statistics[row] = {-kInfinity, 0.0f};
  for (int64 at = threadIdx.x; at < args.seqlen_q * Config::kHeadDimV; at += Config::kThreads) {
    o.row(at / Config::kHeadDimV)[at % Config::kHeadDimV] = 0.0f;
  }

  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.row(args.seqlen_q - 1).end;
  for (int64 key_begin = 0; key_begin < key_end; key_begin += Config::kBlockN) {
    __syncthreads();  // waits until o and the statistics are initialised, and all threads have finished with the
                      // previous keys, which may then be overwritten
    shared.load_keys(k, v, key_begin);
    const int64 first_row = mask.rows_of_key(key_begin).begin / Config::kBlockM * Config::kBlockM;
    for (int64 row_begin = first_row; row_begin < args.seqlen_q; row_begin += Config::kBlockM) {
      update_rows(shared, q, o, statistics, mask, row_begin, key_begin, args.scale);
    }
  }

  __syncthreads();  // waits until the statistics are final; all threads may then read them
  if (args.lse == nullptr) return;
  for (int64 row = threadIdx.x; row < args.seqlen_q; row += Config::kThreads) {
    args.lse[args.lse_stride.offset(batch, head, row)] = statistics[row].row_max + logf(statistics[row].row_sum);
  }
}

}  // namespace attend
