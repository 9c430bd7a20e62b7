// Computes the statistics of query rows for the sm90 backward pass with head dimensions above 256.
//
//   delta    = rowsum(dout * o) - dlse, in the units of ds
//   lse_log2 = log2(e) lse - p_bits
//
// Shapes   as in Sm90BackwardPanelsArgs. Rows that see no key or do not exist get lse_log2 = +inf and delta = 0.
// Work     A thread block has 128 rows of a query head, and each warp computes one row at a time.
#pragma once

#include "../attention/sequence.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "sm90_backward_panels_args.cuh"
#include "sm90_backward_panels_layout.cuh"
#include "sm90_backward_panels_work.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Returns the sum over the row of dout * o. All lanes of a warp call it for the same row.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float panels_dot(const Bits16* dout, const Bits16* o) {
  using Element = ElementOf<Config>;
  constexpr int kStep = kWarpThreads * kPieceElements;
  float sum = 0.0f;
#pragma unroll
  for (int first = 0; first < Config::kHeadDimV; first += kStep) {
    const int column = first + static_cast<int>(threadIdx.x) % kWarpThreads * kPieceElements;
    if (column >= Config::kHeadDimV) continue;
    const uint4 x = load_piece<Config::kHeadDimV>(dout, column), y = load_piece<Config::kHeadDimV>(o, column);
    const uint32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(Element::low(a[i]), Element::low(b[i]), sum);
      sum = fmaf(Element::high(a[i]), Element::high(b[i]), sum);
    }
  }
  return warp_sum(sum);
}

// Grid: one block for each 128 rows of each query head of each sequence, with kPanelsPrepareThreads threads.
template <class Config>
__device__ void sm90_backward_panels_prepare(const Sm90BackwardPanelsArgs& args) {
  constexpr int kWarps = kPanelsPrepareThreads / kWarpThreads;
  constexpr Sm90BackwardUnits kUnits = sm90_backward_units(Config::kElement);
  constexpr float kLowestLse = -1e38f;  // with a sink, lse may be as low as -FLT_MAX. Hidden entries still get p = 0
  const BackwardArgs& base = args.base;
  const auto tiles = static_cast<uint32>(num_tiles(base.seqlen_q, kPanelsRows));
  const HeadTile at = HeadTile::of_block(blockIdx.x, tiles, base.num_heads_q);
  const SequenceSpan span = sequence_span<Config>(base, args.options, at.batch);
  const int64 first = at.tile * kPanelsRows;
  if (first >= span.seqlen_q) return;
  const int64 to = panels_stats_begin<Config>(args, span, at.batch, at.head) + first;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) / kWarpThreads; i < kPanelsRows; i += kWarps) {
    const int64 row = first + i;
    float lse_log2 = kInfinity, delta = 0.0f;
    if (row < span.seqlen_q) {
      const float lse = base.lse[span.query_offset(base.lse_stride, at.head, row)];
      const auto* dout = static_cast<const Bits16*>(base.dout) + span.query_offset(base.dout_stride, at.head, row);
      const auto* o = static_cast<const Bits16*>(base.o) + span.query_offset(base.o_stride, at.head, row);
      const float sum = panels_dot<Config>(dout, o);
      if (lse != -kInfinity) {
        const float finite = lse < kLowestLse ? kLowestLse : lse;  // this form of the maximum keeps NaN
        lse_log2 = fmaf(finite, kLog2E, static_cast<float>(-kUnits.p_bits));
        delta = sum;
        if (base.dlse != nullptr) delta -= base.dlse[span.query_offset(base.dlse_stride, at.head, row)];
        delta *= sm90_backward_unit(kUnits.p_bits - kUnits.ds_bits);
      }
    }
    if (threadIdx.x % kWarpThreads == 0) {
      args.lse_log2[to + i] = lse_log2;
      args.delta[to + i] = delta;
    }
  }
}

}  // namespace attend
