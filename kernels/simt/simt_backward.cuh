// Backward pass of simt. Computes dq, dk and dv of o = drop(softmax(s)) v on CUDA cores, with every option of the
// interface.
//
//   dv = drop(p)^T dout    dk = scale ds^T q    dq = scale ds k    (ds includes the derivative of a transform)
//
// Shapes:   as in simt_forward.cuh. dk and dv are sums over the query heads that share a key head.
// Supports: everything that simt_forward.cuh supports. Results are bit-identical from run to run, because there are no
// atomic additions.
// Work:     The blocks of one kernel own tiles of keys and compute dk and dv. The blocks of another kernel own tiles of
//           rows and compute dq. Each kernel computes p and ds again (backward_tile.cuh), so there are seven products
//           for each tile. A single kernel would need five, but the order of its additions to dq would change from run
//           to run. simt_prepare.cuh runs before these kernels, and simt_dterms.cuh after them.
// Memory:   see SimtBackwardShape.
// Measured: TFLOP/s for (B, H, S, D) = (batch, heads, rows and keys, d), without a mask, on an H200 with CUDA 13.0. A
//           backward pass counts 10 B H S^2 D operations. In float32, simt reaches 26.3 for (8, 16, 2048, 64), and 21.1
//           for (8, 8, 2048, 128). In bfloat16, it reaches 24.4 and 19.7 for these two problems, 9.7 for (4, 8, 2048,
//           256), and 5.2 for (2, 4, 2048, 512).
// Called:   for the backend 'simt' by src/cuda/launch/simt.cpp.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 2.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/work.cuh"
#include "backward_tile.cuh"
#include "simt_dterms.cuh"
#include "simt_prepare.cuh"

namespace attend {

// Tile and part of the columns of a block. Under a causal mask, the longest tiles start first. These are the first
// tiles of keys, and the last tiles of rows.
template <class Config>
struct SimtBackwardWork {
  uint32 sequence;
  uint32 head;
  int64 tile;
  int part;

  [[nodiscard]] static __device__ __forceinline__ SimtBackwardWork mine(const BackwardArgs& args, int64 length,
                                                                        int tile_size, uint32 num_heads,
                                                                        bool last_first) {
    const uint32 part = blockIdx.x % Config::kColumnParts;
    uint32 block = blockIdx.x / Config::kColumnParts;
    HeadTile work;
    if constexpr (Config::kMask == MaskKind::kCausal) {
      if (last_first) block = gridDim.x / Config::kColumnParts - 1 - block;
      work = tile_by_tile(block, args.batch, num_heads);
    } else {
      work = HeadTile::of_block(block, static_cast<uint32>(num_tiles(length, tile_size)), num_heads);
    }
    return {work.batch, work.head, work.tile * tile_size, static_cast<int>(part)};
  }
};

// Stores the gradient of the owned rows of a pair, in the columns of this block's part.
template <int kPair, class Shape>
__device__ __forceinline__ void store_gradient(const typename Shape::template Sums<kPair>& gradient, float factor,
                                               void* tensor, const TensorStrides& stride, uint32 batch, uint32 head,
                                               int64 row, int64 rows_left, int part, bool overwrites,
                                               const SimtThread<Shape>& me) {
  using Config = typename Shape::Kernel;
  constexpr int kCols = Shape::kGradientCols[kPair];
  using Storage = typename ElementOf<Config>::Storage;
  const int first_col = part * kCols;
  const int num_cols = min(kCols, Shape::kHeadDims[kPair] - first_col);
  const int64 first = stride.offset(batch, head, row) + first_col;
#pragma unroll
  for (int i = 0; i < Shape::kOwnedRows; ++i) {
    const int at = me.y * Shape::kOwnedRows + i;
    if (at >= rows_left) break;
    if constexpr (Config::kAddsToOutputs) {
      add_to_row(static_cast<float*>(tensor) + first + at * stride.row, num_cols, {me.x, Shape::kThreadsX}, gradient[i],
                 !overwrites, 1.0f, factor);
    } else {
      store_row<Config>(static_cast<Storage*>(tensor) + first + at * stride.row, num_cols, {me.x, Shape::kThreadsX},
                        gradient[i], factor);
    }
  }
}

// Computes gradient += s^T x. s is the tile of scores at smem_offset, and x are the streamed rows of the pair.
template <int kPair, class Shape>
__device__ __forceinline__ void add_gradient(typename Shape::template Sums<kPair>& gradient, int smem_offset,
                                             bool is_finite, const SimtThread<Shape>& me) {
  using Streamed = Fp32Chunks<typename Shape::template StreamedTile<kPair>, Shape::kStep>;
  MarkedColumns<typename Shape::ScoreTile>{smem_offset, me.y * Shape::kOwnedRows * 4}.add_product(
      gradient, Streamed{Shape::template kRowsAt<kPair>, me.x * kChunkBytes}, is_finite);
}

// Computes dk and dv of one tile of kBlockN keys. The grid has kColumnParts blocks for each tile of every key head of
// every sequence.
template <class Config>
__device__ void simt_backward_keys(const BackwardOptionArgs& args) {
  using Shape = SimtBackwardShape<Config, SimtGradient::kKeysValues>;
  const BackwardArgs& base = args.base;
  const auto work = SimtBackwardWork<Config>::mine(base, base.seqlen_k, Config::kBlockN, base.num_heads_k, false);
  const SequenceSpan span = sequence_span<Config>(base, args.options, work.sequence);
  const int64 key = work.tile;
  const int64 keys_left = span.seqlen_k - key;
  if (keys_left <= 0) return;
  const auto me = SimtThread<Shape>::mine();
  typename Shape::template Sums<0> dk = {};
  typename Shape::template Sums<1> dv = {};
  const uint32 group = base.num_heads_q / base.num_heads_k;
  SimtHead<Config> head = {base, span, work.head * group, work.head};
  load_owned<Shape>(head, key);
#pragma unroll 1
  for (uint32 in_group = 0; in_group < group; ++in_group, ++head.head) {
    const auto rules =
        ScoreRules<Config>::make(args.options, base.scale, span, work.sequence, head.head, base.num_heads_q);
    const SavedRow* saved = saved_rows(args, span, head.head);
    const KeyRange rows = rules.window.rows_of_keys(key, min(key + Config::kBlockN, span.seqlen_k));
    const auto next_tile = [&](int64 from) {
      return rules.map.template next_rows<Config::kBlockM, Config::kBlockN>(from, key, rows.end);
    };
#pragma unroll 1
    for (int64 row = next_tile(rows.begin / Config::kBlockM * Config::kBlockM); row < rows.end;
         row = next_tile(row + Config::kBlockM)) {
      __syncthreads();  // waits until every warp has finished with the previous tiles, which may then be overwritten
      load_saved<Shape>(saved, row, span.seqlen_q);
      // Waits until the tiles are loaded; all warps may then read them.
      const bool is_finite = __syncthreads_and(load_streamed<Shape>(head, row, work.part));
      typename Shape::Scores ds = {};
      gradient_tile(ds, head, rules, args.options, row, key, me);
      __syncthreads();  // waits until p and ds are complete; all warps may then read them
      add_gradient<1>(dv, Shape::kP, is_finite, me);
      add_gradient<0>(dk, Shape::kDs, is_finite, me);
    }
  }
  const bool overwrites = (base.overwritten & kOverwritesKeys) != 0;
  store_gradient<0>(dk, base.gradient_scale, base.dk, base.dk_stride, span.batch, work.head, span.k_begin + key,
                    keys_left, work.part, overwrites, me);
  store_gradient<1>(dv, 1.0f, base.dv, base.dv_stride, span.batch, work.head, span.k_begin + key, keys_left, work.part,
                    overwrites, me);
}

// Computes dq of one tile of kBlockM rows. The grid has kColumnParts blocks for each tile of every query head of every
// sequence.
template <class Config>
__device__ void simt_backward_queries(const BackwardOptionArgs& args) {
  using Shape = SimtBackwardShape<Config, SimtGradient::kQueries>;
  const BackwardArgs& base = args.base;
  const auto work = SimtBackwardWork<Config>::mine(base, base.seqlen_q, Config::kBlockM, base.num_heads_q, true);
  const SequenceSpan span = sequence_span<Config>(base, args.options, work.sequence);
  const int64 row = work.tile;
  const int64 rows_left = span.seqlen_q - row;
  if (rows_left <= 0) return;
  const auto me = SimtThread<Shape>::mine();
  typename Shape::template Sums<0> dq = {};
  const SimtHead<Config> head = {base, span, work.head, key_head_of(base, work.head)};
  const auto rules =
      ScoreRules<Config>::make(args.options, base.scale, span, work.sequence, work.head, base.num_heads_q);
  const KeyRange keys = rules.window.rows(row, min(row + Config::kBlockM, span.seqlen_q));
  load_owned<Shape>(head, row);
  load_saved<Shape>(saved_rows(args, span, work.head), row, span.seqlen_q);
  const auto next_tile = [&](int64 from) {
    return rules.map.template next_keys<Config::kBlockM, Config::kBlockN>(row, from, keys.end);
  };
#pragma unroll 1
  for (int64 key = next_tile(keys.begin / Config::kBlockN * Config::kBlockN); key < keys.end;
       key = next_tile(key + Config::kBlockN)) {
    __syncthreads();  // waits until every warp has finished with the previous tiles, which may then be overwritten
    // Waits until the tiles are loaded; all warps may then read them.
    const bool is_finite = __syncthreads_and(load_streamed<Shape>(head, key, work.part));
    typename Shape::Scores ds = {};
    gradient_tile(ds, head, rules, args.options, key, row, me);
    __syncthreads();  // waits until ds is complete; all warps may then read it
    add_gradient<0>(dq, Shape::kDs, is_finite, me);
  }
  store_gradient<0>(dq, base.gradient_scale, base.dq, base.dq_stride, span.batch, work.head, span.q_begin + row,
                    rows_left, work.part, (base.overwritten & kOverwritesQueries) != 0, me);
}

}  // namespace attend
