// Rung 07, scalar2d_row_tile: has the loop of rung 06, but keeps scores, statistics and o of a tile of rows in
// registers.
//
// Shapes:   q (batch, heads, seqlen_q, d), k and v (batch, heads_k, seqlen_k, d and d_v); any strides whose last is 1.
// Supports: float32, d and d_v up to 128, full and causal masks, grouped heads, and every architecture.
// Before:   In rung 06, fa2_naive, a thread has 4 x 4 scores. The softmax is computed between barriers, on S in shared
//           memory.
// After:    A thread has 8 x 4 scores. The 16 threads that share rows are half a warp. They compute the maximum and the
//           sum of a row by shuffles, and keep m and l in registers. Only P is passed through shared memory, within the
//           half warp.
// Why:      Loads from shared memory fall from 0.5 to 0.375 for each fused multiply-add, and to 0.25 for P v at d =
//           128. Two of the four barriers are gone, and S is no longer written to shared memory.
// Costs:    A load instruction still moves only one word, whereas rung 08 moves four. During the barriers around
//           load_keys, only the other block of the multiprocessor computes. P is still written to shared memory and
//           read.
// Measured: 29.2 TFLOP/s at d = 64 and 30.7 at d = 128, with 8 x 16 heads, 2048 rows and keys, and no mask. With a
//           causal mask, the rung reaches 25.0 and 26.2. H200, CUDA 13.0.
// Run:      `attend run --compute scalar2d_row_tile --data DIR`.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1.
#pragma once

#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../tiles/shared_storage.cuh"
#include "pieces/thread_grid.cuh"

namespace attend {

template <class Config>
struct RowTileStorage {
  static constexpr int kStride = odd_stride(Config::kHeadDim);

  float q[Config::kBlockM][kStride];
  float k[Config::kBlockN][kStride];
  float v[Config::kBlockN][ThreadGrid<Config>::kColsV];
  float p[Config::kBlockM][odd_stride(Config::kBlockN)];

  __device__ __forceinline__ void load_keys(const HeadMatrix<const float>& k_rows,
                                            const HeadMatrix<const float>& v_rows, int64 key_begin) {
    load_tile<Config>(k, k_rows, key_begin, {Config::kHeadDim, Config::kHeadDim});
    load_tile<Config>(v, v_rows, key_begin, {Config::kHeadDimV, ThreadGrid<Config>::kColsV});
  }
};

// State of a thread's rows. The 16 threads of a half warp have the same rows.
template <class Config>
struct RowTileState {
  using Grid = ThreadGrid<Config>;

  float row_max[Grid::kRows];              // m, the running row maximum
  float row_sum[Grid::kRows];              // this thread's share of l
  float o_frag[Grid::kRows][Grid::kCols];  // the sum of exp(s - m) v

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
      row_max[i] = -kInfinity;
      row_sum[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < Grid::kCols; ++c) o_frag[i][c] = 0.0f;
    }
  }

  // Turns s_frag into exp(s - m), and updates m, l and o.
  __device__ __forceinline__ void update_softmax(float (&s_frag)[Grid::kRows][Grid::kKeys]) {
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
      float new_max = row_max[i];
#pragma unroll
      for (int j = 0; j < Grid::kKeys; ++j) new_max = fmaxf(new_max, s_frag[i][j]);
      new_max = warp_max<Grid::kColThreads>(new_max);
      const float rescale = expf(row_max[i] - exponent_base(new_max));  // rescale is 0 for the first tile, because
                                                                        // row_max is -inf
      row_max[i] = new_max;
      row_sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < Grid::kKeys; ++j) {
        s_frag[i][j] = expf(s_frag[i][j] - exponent_base(new_max));
        row_sum[i] += s_frag[i][j];
      }
#pragma unroll
      for (int c = 0; c < Grid::kCols; ++c) o_frag[i][c] *= rescale;
    }
  }

  // Sums l over the 16 threads that share a row, and divides o by it.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
      row_sum[i] = warp_sum<Grid::kColThreads>(row_sum[i]);
      const float inverse_sum = inverse_or_zero(row_sum[i]);
#pragma unroll
      for (int c = 0; c < Grid::kCols; ++c) o_frag[i][c] *= inverse_sum;
    }
  }
};

// Computes a tile of rows. The grid has one block for each tile of kBlockM rows of every query head.
template <class Config>
__device__ void scalar2d_row_tile_forward(const ForwardArgs& args) {
  using Grid = ThreadGrid<Config>;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  const uint32 head_k = key_head_of(args, head);
  const auto q = head_matrix<const float>(args.q, args.q_stride, batch, head, args.seqlen_q);
  const auto k = head_matrix<const float>(args.k, args.k_stride, batch, head_k, args.seqlen_k);
  const auto v = head_matrix<const float>(args.v, args.v_stride, batch, head_k, args.seqlen_k);
  const auto o = head_matrix<float>(args.o, args.o_stride, batch, head, args.seqlen_q);
  auto& shared = shared_storage<RowTileStorage<Config>, Config>();

  const int64 row_begin = tile * Config::kBlockM;
  const int num_rows = static_cast<int>(min(args.seqlen_q - row_begin, int64{Config::kBlockM}));
  const WindowMask mask = mask_of<Config>(args);
  const int64 key_end = mask.rows(row_begin, row_begin + num_rows).end;

  load_tile<Config>(shared.q, q, row_begin, {Config::kHeadDim, Config::kHeadDim});
  RowTileState<Config> state;
  state.clear();
  for (int64 key_begin = 0; key_begin < key_end; key_begin += Config::kBlockN) {
    __syncthreads();  // waits until all threads have finished with the previous tile, which may then be overwritten
    shared.load_keys(k, v, key_begin);
    __syncthreads();  // waits until the tile has arrived, and in the first iteration also q; they may then be read
    float s_frag[Grid::kRows][Grid::kKeys];
    Grid::multiply_qk(s_frag, shared.q, shared.k);
    Grid::scale_and_mask(s_frag, mask, row_begin, key_begin, args.scale);
    state.update_softmax(s_frag);
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Grid::kKeys; ++j) shared.p[Grid::row(i)][Grid::col(j)] = s_frag[i][j];
    }
    __syncwarp();  // waits until P of the warp's rows is complete; no other warp accesses these rows
    Grid::multiply_pv(state.o_frag, shared.p, shared.v);
  }

  state.finish();
  Grid::for_each_output(state.o_frag, num_rows,
                        [&](int row, int col, float& value) { o.row(row_begin + row)[col] = value; });
  if (args.lse == nullptr || Grid::col(0) != 0) return;
#pragma unroll
  for (int i = 0; i < Grid::kRows; ++i) {
    if (Grid::row(i) >= num_rows) continue;
    args.lse[args.lse_stride.offset(batch, head, row_begin + Grid::row(i))] = state.row_max[i] + logf(state.row_sum[i]);
  }
}

}  // namespace attend
