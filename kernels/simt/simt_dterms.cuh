// Gradient of a bias that is read from memory. dterms is the sum of ds over the batch entries, heads and rows to which
// the bias is broadcast, added in a fixed order.
//
// Shapes:   dterms has the shape (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k), and any strides whose last is
//           1.
// Work:     A block owns one tile of dterms, and visits every tile of scores that adds to it. So nothing of the size of
//           the score matrix is stored. If the bias is the same for all rows, dterms has too few tiles for this. In
//           that case, a block sums ds over the rows for one tile of keys of one head, and writes float32 sums to the
//           workspace. A second kernel sums over batch entries and heads.
// Called:   by src/cuda/launch/simt.cpp, as the last steps of the backward pass, if dterms is requested.
#pragma once

#include "../attention/dterms_reduce.cuh"
#include "../attention/head_matrix.cuh"
#include "../attention/work.cuh"
#include "backward_tile.cuh"

namespace attend {

template <class Config>
using SimtDtermsShape = SimtBackwardShape<Config, SimtGradient::kTerms>;

// Adds ds of one tile of scores of one head to `sum`.
template <class Config>
__device__ __forceinline__ void add_dterms_tile(typename SimtDtermsShape<Config>::Scores& sum,
                                                const BackwardOptionArgs& args, const SimtHead<Config>& head, int64 row,
                                                int64 key, const SimtThread<SimtDtermsShape<Config>>& me) {
  using Shape = SimtDtermsShape<Config>;
  const auto rules = ScoreRules<Config>::make(args.options, args.base.scale, head.span, head.span.batch, head.head,
                                              args.base.num_heads_q);
  const KeyRange keys = rules.window.rows(row, min(row + Config::kBlockM, head.span.seqlen_q));
  if (keys.begin >= key + Config::kBlockN || keys.end <= key) return;
  if (!rules.map.template sees_any<Config::kBlockM, Config::kBlockN>(row, key)) return;
  __syncthreads();  // waits until every warp has finished with the previous tiles, which may then be overwritten
  load_owned<Shape>(head, key);
  load_saved<Shape>(saved_rows(args, head.span, head.head), row, head.span.seqlen_q);
  static_cast<void>(load_streamed<Shape>(head, row, 0));
  __syncthreads();  // waits until the tiles are loaded; all warps may then read them
  typename Shape::Scores ds = {};
  gradient_tile(ds, head, rules, args.options, row, key, me);
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) sum[i][j] += ds[i][j];
  }
}

template <class Config>
[[nodiscard]] __device__ __forceinline__ SimtHead<Config> dterms_head(const BackwardArgs& args, uint32 batch,
                                                                      uint32 head) {
  const SequenceSpan span = {batch, 0, 0, args.seqlen_q, args.seqlen_k};
  return {args, span, head, key_head_of(args, head)};
}

// Computes a tile of dterms, for a bias that differs between rows. The grid has one block for each tile of kBlockM rows
// and kBlockN keys of every batch entry and head of dterms. Blocks that
// follow each other in the grid have key tiles that follow each other.
template <class Config>
__device__ void simt_dterms(const BackwardOptionArgs& args) {
  using Element = DtermsElementOf<Config>;
  using Shape = SimtDtermsShape<Config>;
  const BackwardArgs& base = args.base;
  const auto key_tiles = static_cast<uint32>(num_tiles(base.seqlen_k, Config::kBlockN));
  const auto row_tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Config::kBlockM));
  const int64 key = int64{blockIdx.x % key_tiles} * Config::kBlockN;
  const auto [terms_batch, terms_head_index, tile] =
      HeadTile::of_block(blockIdx.x / key_tiles, row_tiles, args.dterms_heads);
  const int64 row = tile * Config::kBlockM;
  const auto me = SimtThread<Shape>::mine();
  typename Shape::Scores sum = {};
  const auto batches = BroadcastRange::of(terms_batch, args.dterms_batch, base.batch);
  const auto heads = BroadcastRange::of(terms_head_index, args.dterms_heads, base.num_heads_q);
#pragma unroll 1
  for (uint32 batch = batches.begin; batch < batches.end; ++batch) {
#pragma unroll 1
    for (uint32 head = heads.begin; head < heads.end; ++head) {
      add_dterms_tile(sum, args, dterms_head<Config>(base, batch, head), row, key, me);
    }
  }
  const auto place = me.place();
  auto* dterms = static_cast<typename Element::Storage*>(args.dterms) +
                 args.dterms_stride.offset(terms_batch, terms_head_index, row) + key;
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      const int at_row = place.row(i, j), at_key = place.key(i, j);
      if (row + at_row >= base.seqlen_q || key + at_key >= base.seqlen_k) continue;
      dterms[at_row * args.dterms_stride.row + at_key] = Element::round(sum[i][j]);
    }
  }
}

// Sums ds over the rows, for one tile of keys. The grid has one block for each tile of kBlockN keys of every query
// head.
template <class Config>
__device__ void simt_dterms_over_rows(const BackwardOptionArgs& args) {
  using Shape = SimtDtermsShape<Config>;
  const BackwardArgs& base = args.base;
  const auto key_tiles = static_cast<uint32>(num_tiles(base.seqlen_k, Config::kBlockN));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, key_tiles, base.num_heads_q);
  const int64 key = tile * Config::kBlockN;
  const auto me = SimtThread<Shape>::mine();
  const auto tiles = dterms_head<Config>(base, batch, head);
  typename Shape::Scores sum = {};
#pragma unroll 1
  for (int64 row = 0; row < base.seqlen_q; row += Config::kBlockM) add_dterms_tile(sum, args, tiles, row, key, me);

  __syncthreads();  // waits until every warp has finished with the tiles, which the threads' sums may then overwrite
  auto* of_threads = reinterpret_cast<float*>(fp32_smem);  // shape (kThreadsY, kBlockN)
  static_assert(Shape::kThreadsY * Config::kBlockN * 4 <= Config::kSmemBytes);
#pragma unroll
  for (int j = 0; j < Shape::kCols; ++j) {
    float of_thread = 0.0f;
#pragma unroll
    for (int i = 0; i < Shape::kRows; ++i) of_thread += sum[i][j];
    of_threads[me.y * Config::kBlockN + me.place().key(0, j)] = of_thread;
  }
  __syncthreads();  // waits until all sums are written; all threads may then read them
  float* to = args.dterms_sums + (int64{batch} * base.num_heads_q + head) * base.seqlen_k + key;
  for (int i = threadIdx.x; i < Config::kBlockN && key + i < base.seqlen_k; i += Config::kThreads) {
    float total = 0.0f;
    for (int y = 0; y < Shape::kThreadsY; ++y) total += of_threads[y * Config::kBlockN + i];
    to[i] = total;
  }
}

}  // namespace attend
