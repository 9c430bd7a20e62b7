// The bias's gradient where the bias is broadcast: a sum over the entries that share a number of it.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"
#include "work.cuh"

namespace attend {

// Indices that one index of a dimension of dbias stands for: itself, or all where the bias is broadcast.
struct BroadcastRange {
  uint32 begin;
  uint32 end;

  [[nodiscard]] static __device__ __forceinline__ BroadcastRange of(uint32 index, uint32 bias_size, uint32 full_size) {
    return bias_size == full_size ? BroadcastRange{index, index + 1} : BroadcastRange{0, full_size};
  }
};

// dbias from the sums over rows of each query head (BackwardOptionArgs::dbias_sums), always in the same order.
// Grid: runs of kThreads keys of every batch entry and head of dbias.
template <class Config>
__device__ void dbias_reduce(const BackwardOptionArgs& args) {
  using Element = typename ElementTraits<Config::kDbiasElement>::Type;
  const BackwardArgs& base = args.base;
  const auto runs = static_cast<uint32>(num_tiles(base.seqlen_k, Config::kThreads));
  const auto [bias_batch, bias_head_index, run] = HeadTile::of_block(blockIdx.x, runs, args.dbias_heads);
  const int64 key = run * Config::kThreads + threadIdx.x;
  if (key >= base.seqlen_k) return;
  const auto batches = BroadcastRange::of(bias_batch, args.dbias_batch, base.batch);
  const auto heads = BroadcastRange::of(bias_head_index, args.dbias_heads, base.num_heads_q);
  const float* sums = args.dbias_sums + key;
  float total = 0.0f;
  for (uint32 batch = batches.begin; batch < batches.end; ++batch) {
    for (uint32 head = heads.begin; head < heads.end; ++head) {
      total += sums[(int64{batch} * base.num_heads_q + head) * base.seqlen_k];
    }
  }
  auto* dbias = static_cast<typename Element::Storage*>(args.dbias);
  dbias[args.dbias_stride.offset(bias_batch, bias_head_index, 0) + key] = Element::round(total);
}

}  // namespace attend
