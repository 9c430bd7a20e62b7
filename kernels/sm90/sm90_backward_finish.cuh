// Runs after the main backward kernel on sm90 and computes dq = scale * (its float sums). The result is rounded, or
// added to floats if kAddsToOutputs is set.
//
// The sums have the same layout as the accumulators that were added to them. Each thread of this kernel reads the
// entries of the accumulator thread with the same index. The lanes of a quad then exchange their pairs, so that each
// lane writes 16 bytes of a row.
#pragma once

#include "sm90_backward_layout.cuh"
#include "sm90_backward_prepare.cuh"
#include "sm90_backward_store.cuh"

namespace attend {

// Rounds dq of one tile of query rows. Grid: sm90_backward_row_blocks(), with kBackwardFinishThreads threads per block.
template <class Config>
__device__ void sm90_backward_finish(const Sm90BackwardArgs& args) {
  constexpr int kDepth = sm90_backward_tile(Config::kHeadDim, Config::kHeadDimV, {}, 0).depth;
  const auto tile = BackwardRowTile::mine<Config>(args);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64 rows_left = tile.rows_left - warp * 16;
  if (rows_left <= 0) return;
  const auto* sums =
      reinterpret_cast<const float4*>(args.dq_sums + tile.stats_row * kDepth) + warp * 256 + threadIdx.x % 32;
  float dq[kDepth / 2];
#pragma unroll
  for (int i = 0; i < kDepth / 8; ++i) {
    // Each pass of 64 columns has 4 warps with 256 vectors each; a thread reads 8 of them.
    const float4 sum = __ldcs(sums + i / 8 * 1024 + i % 8 * 32);
    dq[4 * i] = sum.x;
    dq[4 * i + 1] = sum.y;
    dq[4 * i + 2] = sum.z;
    dq[4 * i + 3] = sum.w;
  }
  const BackwardArgs& base = args.base;
  const int64 at = tile.span.query_offset(base.dq_stride, tile.head, tile.row + warp * 16);
  store_gradient<Config, Config::kHeadDim>(dq, base.gradient_scale, base.dq, at, base.dq_stride.row,
                                           static_cast<int>(rows_left < 16 ? rows_left : 16),
                                           (base.overwritten & kOverwritesQueries) != 0);
}

}  // namespace attend
