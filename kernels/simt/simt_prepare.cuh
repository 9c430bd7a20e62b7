// First kernel of the backward pass. Computes the saved values of every query row.
//
//   delta = rowsum(dout * o) - dlse
//
// If kSoleKey is set, delta of a row that sees only one key uses o as it was before rounding (attention/sole_key.cuh).
//
// Shapes:   as in simt_backward.cuh. Saved rows (batch, heads, rows of q) are in the workspace.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 2, line 4.
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/saved_row.cuh"
#include "../attention/sole_key.cuh"
#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "tile_io.cuh"

namespace attend {

// Computes the saved values of kBlockM rows. The grid has one block for each tile of every query head of every
// sequence. Eight lanes share a row.
template <class Config>
__device__ void simt_backward_prepare(const BackwardOptionArgs& args) {
  using Source = RowSource<Config>;
  constexpr int kLanes = 8;
  constexpr int kCount = Config::kAligned ? kVectorElements<Config> : 1;
  const BackwardArgs& base = args.base;
  const auto row_tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Config::kBlockM));
  const auto [sequence, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, base.num_heads_q);
  const SequenceSpan span = sequence_span<Config>(base, args.options, sequence);
  SavedRow* saved = saved_rows(args, span, head);
  const int64 first_row = tile * Config::kBlockM;
  const int64 rows_left = span.seqlen_q - first_row;
  const Source dout = Source::of(base.dout, span.query_offset(base.dout_stride, head, first_row), base.dout_stride.row,
                                 rows_left, Config::kHeadDimV);
  const Source o = Source::of(base.o, span.query_offset(base.o_stride, head, first_row), base.o_stride.row, rows_left,
                              Config::kHeadDimV);
#pragma unroll 1
  for (int i = threadIdx.x / kLanes; i < Config::kBlockM; i += Config::kThreads / kLanes) {
    float sum = 0.0f;
#pragma unroll 4
    for (int col = threadIdx.x % kLanes * kCount; col < Config::kHeadDimV; col += kLanes * kCount) {
      float x[kCount], y[kCount];
      dout.read(x, i, col);
      o.read(y, i, col);
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum = fmaf(x[c], y[c], sum);
    }
    sum = warp_sum<kLanes>(sum);
    if constexpr (Config::kSoleKey) {
      sum = sole_key_delta<Config, kLanes>(base, args.options, span, sequence, head, first_row + i, sum);
    }
    const int64 row = span.q_begin + first_row + i;
    float lse = 0.0f, log2_sum = 0.0f;
    if (i < rows_left) lse = base.lse[base.lse_stride.offset(span.batch, head, row)];
    if constexpr (Config::kHasLseRounding) {
      log2_sum = lse_log2_sum<Config, kLanes>(base, args.options, span, sequence, head, first_row + i, lse);
    }
    if (threadIdx.x % kLanes != 0 || i >= rows_left) continue;
    if (base.dlse != nullptr) sum -= base.dlse[base.dlse_stride.offset(span.batch, head, row)];
    saved[first_row + i] = {lse == -kInfinity ? kInfinity : lse, sum, log2_sum};
  }
}

}  // namespace attend
