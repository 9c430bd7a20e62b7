// Rung 08, fa2, first kernel of the backward pass: computes the saved values of every query row, and zeroes dq.
//
//   delta = rowsum(dout * o) - dlse
//
// Shapes:   as in 08_fa2.cuh. The workspace holds saved rows (batch, heads, seqlen_q rounded up to full tiles).
// Called:   as the first step of the backward pass. 08_fa2_backward.cuh reads the results.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 2, line 4.
#pragma once

#include "../attention/work.cuh"
#include "../common/args.cuh"
#include "../common/config_enums.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "../tiles/fp32_tile.cuh"
#include "08_fa2_shape.cuh"
#include "pieces/fp32_scores.cuh"

namespace attend {

// Returns the saved values of a head's rows. Each head is padded to full tiles of rows.
[[nodiscard]] __device__ __forceinline__ Fa2SavedRow* fa2_saved_rows(const BackwardArgs& args, uint32 batch,
                                                                     uint32 head) {
  const int64 rows = num_tiles(args.seqlen_q, kSavedRowsTile) * kSavedRowsTile;
  return static_cast<Fa2SavedRow*>(args.workspace) + (int64{batch} * args.num_heads_q + head) * rows;
}

// Computes the saved values of kBlockM rows, and zeroes their dq. The grid has one block for each tile of every query
// head. Eight lanes share a row.
template <class Config>
__device__ void fa2_backward_prepare(const BackwardArgs& args) {
  static_assert(Config::kBlockM == kSavedRowsTile);
  constexpr int kLanes = 8;
  constexpr int kWidth = Config::kAligned ? kChunkFloats : 1;
  const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
  const auto [batch, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, args.num_heads_q);
  Fa2SavedRow* saved = fa2_saved_rows(args, batch, head);
  for (int i = threadIdx.x / kLanes; i < Config::kBlockM; i += Config::kThreads / kLanes) {
    const int64 row = tile * Config::kBlockM + i;
    float sum = 0.0f;
    if (row < args.seqlen_q) {
      const float* dout = static_cast<const float*>(args.dout) + args.dout_stride.offset(batch, head, row);
      const float* o = static_cast<const float*>(args.o) + args.o_stride.offset(batch, head, row);
      float* dq = static_cast<float*>(args.dq) + args.dq_stride.offset(batch, head, row);
      for (int col = threadIdx.x % kLanes * kWidth; col < Config::kHeadDim; col += kLanes * kWidth) {
        if constexpr (Config::kAligned) {
          const float4 x = *reinterpret_cast<const float4*>(dout + col);
          const float4 y = *reinterpret_cast<const float4*>(o + col);
          sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
          *reinterpret_cast<float4*>(dq + col) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        } else {
          sum = fmaf(dout[col], o[col], sum);
          dq[col] = 0.0f;
        }
      }
    }
    sum = warp_sum<kLanes>(sum);
    if (threadIdx.x % kLanes != 0) continue;
    Fa2SavedRow result = {kInfinity, 0.0f};
    if (row < args.seqlen_q) {
      const float lse = args.lse[args.lse_stride.offset(batch, head, row)];
      if (lse != -kInfinity) result.lse = lse;
      result.delta = args.dlse == nullptr ? sum : sum - args.dlse[args.dlse_stride.offset(batch, head, row)];
    }
    saved[row] = result;
  }
}

}  // namespace attend
