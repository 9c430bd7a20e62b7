// Runs after a main backward kernel that sums dk and dv in memory, on sm90. It rounds these sums.
//
// The sums have the same layout as the accumulators that were added to them. Each thread of this kernel reads the
// entries of the accumulator thread with the same index.
#pragma once

#include "sm90_backward_key_sums.cuh"
#include "sm90_backward_layout.cuh"

namespace attend {

// Rounds dk and dv of 64 keys of a KV head. Grid: one block of kBackwardFinishThreads threads for each 64 keys of each
// KV head. Blocks of adjacent heads are adjacent.
template <class Config>
__device__ void sm90_backward_finish_keys(const Sm90BackwardArgs& args) {
  using Shape = BackwardShape<Config>;
  using Sums = BackwardKeySums<Config>;
  static_assert(kBackwardFinishThreads == kWarpgroup);
  const uint32 key_tiles = args.key_blocks * Shape::kWarpgroups;
  const uint32 head_k = blockIdx.x % args.base.num_heads_k;
  const uint32 key_tile = blockIdx.x / args.base.num_heads_k % key_tiles;
  const uint32 batch = blockIdx.x / args.base.num_heads_k / key_tiles;
  const int row = static_cast<int>(key_tile) * kWarpgroupRows + static_cast<int>(threadIdx.x) / 32 * 16;
  if (batch >= args.base.batch || row >= args.base.seqlen_k) return;
  const float4* from = Sums::of_tile(args, int64{batch} * args.base.num_heads_k + head_k, key_tile);
  float dk[Shape::kDepth / 2], dv[Shape::kDepthV / 2];
  const auto read = [&from](float* x) {
    const float4 sum = __ldcs(from);
    x[0] = sum.x;
    x[1] = sum.y;
    x[2] = sum.z;
    x[3] = sum.w;
    from += kWarpgroup;
  };
#pragma unroll
  for (int i = 0; i < Shape::kDepth / 2; i += 4) read(dk + i);
#pragma unroll
  for (int i = 0; i < Shape::kDepthV / 2; i += 4) read(dv + i);
  const int64 rows_left = args.base.seqlen_k - row;
  const KeySource keys = {batch, 0, args.base.seqlen_k};
  store_key_gradients<Config>(args, dk, dv, keys, head_k, row, static_cast<int>(rows_left < 16 ? rows_left : 16));
}

}  // namespace attend
