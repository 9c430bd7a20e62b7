// Computes the gradient of a broadcast bias (dterms), by summing over the batch entries and heads that share an
// element.
#pragma once

#include "../common/args.cuh"
#include "terms.cuh"
#include "work.cuh"

namespace attend {

// Range of batch entries, or of heads, that share one index of dterms. The range has one element. If the bias is
// broadcast along the dimension, the range covers the full dimension.
struct BroadcastRange {
  uint32 begin;
  uint32 end;

  [[nodiscard]] static __device__ __forceinline__ BroadcastRange of(uint32 index, uint32 terms_size, uint32 full_size) {
    return terms_size == full_size ? BroadcastRange{index, index + 1} : BroadcastRange{0, full_size};
  }
};

// Computes dterms by adding the sums of the query heads in a fixed order. Each head's sums are over its rows
// (BackwardOptionArgs::dterms_sums). The grid has one block for each run of kThreads keys of every batch entry and head
// of dterms.
template <class Config>
__device__ void dterms_reduce(const BackwardOptionArgs& args) {
  using Element = DtermsElementOf<Config>;
  const BackwardArgs& base = args.base;
  const auto runs = static_cast<uint32>(num_tiles(base.seqlen_k, Config::kThreads));
  const auto [terms_batch, terms_head_index, run] = HeadTile::of_block(blockIdx.x, runs, args.dterms_heads);
  const int64 key = run * Config::kThreads + threadIdx.x;
  if (key >= base.seqlen_k) return;
  const auto batches = BroadcastRange::of(terms_batch, args.dterms_batch, base.batch);
  const auto heads = BroadcastRange::of(terms_head_index, args.dterms_heads, base.num_heads_q);
  const float* sums = args.dterms_sums + key;
  float total = 0.0f;
  for (uint32 batch = batches.begin; batch < batches.end; ++batch) {
    for (uint32 head = heads.begin; head < heads.end; ++head) {
      total += sums[(int64{batch} * base.num_heads_q + head) * base.seqlen_k];
    }
  }
  auto* dterms = static_cast<typename Element::Storage*>(args.dterms);
  dterms[args.dterms_stride.offset(terms_batch, terms_head_index, 0) + key] = Element::round(total);
}

}  // namespace attend
