// Computes the gradient of a head's logit, whose exponential is part of the row sums (row_end.cuh). The gradient of a
// score is p (dp - <dout, o> + dlse). For the logit, dp is 0, because the logit has no row of v. So
//
//   d logit = sum over rows of exp(logit - lse) (dlse - <dout, o>)
//
// Shapes:   as in BackwardArgs. The logits have the shape (num_sequences, num_heads_q), or one row for all sequences.
// Supports: every dtype, stride and length, and packed sequences. All sums are float32, and are added in a fixed order.
// Work:     In row_logit_parts, a block has kBlockM rows of a head, and 8 threads share a row. In row_logit_gradient, a
//           block sums the partial results of one entry of the gradient.
// Memory:   The kernel reads dout and o once, which takes most of the time.
// Called:   by src/cuda/launch/row_logit_steps.hpp, as the last two steps of a backward pass, if the caller requests
//           the gradient.
#pragma once

#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "dterms_reduce.cuh"
#include "row_end.cuh"
#include "sequence.cuh"
#include "work.cuh"

namespace attend {

// Returns the sum of `value` over the block's threads. Every thread gets the result.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float block_sum(float value) {
  constexpr int kWarps = Config::kThreads / kWarpThreads;
  __shared__ float of_warps[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = value;
  __syncthreads();  // waits until every warp's sum is written; any thread may then read it
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  return sum;
}

// Returns <dout, o> of a row over a lane's share of the columns. If may_see_no_key is set, columns with an o of 0
// contribute nothing, even if dout is not finite.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ float share_of_delta(const BackwardArgs& base, const SequenceSpan& span,
                                                              uint32 head, int64 row, bool may_see_no_key) {
  using Storage = typename ElementOf<Config>::Storage;
  constexpr int kRun =
      Config::kAligned && Config::kHeadDimV % kVectorElements<Config> == 0 ? kVectorElements<Config> : 1;
  const auto* dout = static_cast<const Storage*>(base.dout) + span.query_offset(base.dout_stride, head, row);
  const auto* o = static_cast<const Storage*>(base.o) + span.query_offset(base.o_stride, head, row);
  float sum = 0.0f;
  for (int col = static_cast<int>(threadIdx.x) % kLanes * kRun; col < Config::kHeadDimV; col += kLanes * kRun) {
    float x[kRun], y[kRun];
    load_elements<Config>(x, dout + col);
    load_elements<Config>(y, o + col);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (y[i] != 0.0f || !may_see_no_key) sum = fmaf(x[i], y[i], sum);
    }
  }
  return sum;
}

// Computes the part of the gradient that a block's rows contribute. The grid has one block for each tile of kBlockM
// rows of every query head of every sequence.
template <class Config>
__device__ void row_logit_parts(const BackwardOptionArgs& args) {
  constexpr int kLanes = 8;  // number of lanes that share a row
  constexpr int kRowsAtOnce = Config::kThreads / kLanes;
  const BackwardArgs& base = args.base;
  const auto tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Config::kBlockM));
  const auto [sequence, head, tile] = HeadTile::of_block(blockIdx.x, tiles, base.num_heads_q);
  const SequenceSpan span = sequence_span<Config>(base, args.options, sequence);
  const float logit = row_logit(args.options, sequence, head);
  float sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < Config::kBlockM; first += kRowsAtOnce) {
    const int64 row = tile * Config::kBlockM + first + static_cast<int>(threadIdx.x) / kLanes;
    const bool exists = row < span.seqlen_q;
    const float lse = exists ? base.lse[span.query_offset(base.lse_stride, head, row)] : 0.0f;
    const float delta =
        warp_sum<kLanes>(exists ? share_of_delta<Config, kLanes>(base, span, head, row, lse == logit) : 0.0f);
    if (!exists || threadIdx.x % kLanes != 0 || logit == -kInfinity) continue;
    const float dlse = base.dlse == nullptr ? 0.0f : base.dlse[span.query_offset(base.dlse_stride, head, row)];
    sum += expf(logit - lse) * (dlse - delta);
  }
  sum = block_sum<Config>(sum);
  if (threadIdx.x == 0) args.dlogits_parts[blockIdx.x] = sum;
}

// Sums the partial results of row_logit_parts. The grid has one block for each entry of the gradient.
template <class Config>
__device__ void row_logit_gradient(const BackwardOptionArgs& args) {
  const BackwardArgs& base = args.base;
  const uint32 entry = blockIdx.x / base.num_heads_q, head = blockIdx.x % base.num_heads_q;
  const auto sequences = BroadcastRange::of(entry, args.dlogits_sequences, base.batch);
  const int64 tiles = num_tiles(base.seqlen_q, Config::kBlockM);
  float sum = 0.0f;
  for (uint32 sequence = sequences.begin; sequence < sequences.end; ++sequence) {
    const float* parts = args.dlogits_parts + (int64{sequence} * base.num_heads_q + head) * tiles;
    for (int64 tile = threadIdx.x; tile < tiles; tile += Config::kThreads) sum += parts[tile];
  }
  sum = block_sum<Config>(sum);
  if (threadIdx.x != 0) return;
  const int64 at = entry * args.dlogits_sequence_stride + head * args.dlogits_head_stride;
  switch (static_cast<ElementType>(args.dlogits_element)) {
    case ElementType::kF32:
      static_cast<float*>(args.dlogits)[at] = sum;
      break;
    case ElementType::kF16:
      static_cast<Bits16*>(args.dlogits)[at] = Float16::round(sum);
      break;
    case ElementType::kBF16:
      static_cast<Bits16*>(args.dlogits)[at] = BFloat16::round(sum);
      break;
  }
}

}  // namespace attend
