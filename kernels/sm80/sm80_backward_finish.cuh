// sm80_backward, after a pass that added to dq: dq = scale * (its float sums), rounded.
#pragma once

#include "sm80_backward_dq.cuh"

namespace attend {

// kCount neighbours, rounded, in one store of 16 bytes where they are eight.
template <class Element, int kCount>
__device__ __forceinline__ void sm80_store_rounded(Bits16* to, const float* sums, float factor) {
  if constexpr (kCount == 8) {
    const float4 low = __ldcs(reinterpret_cast<const float4*>(sums));
    const float4 high = __ldcs(reinterpret_cast<const float4*>(sums) + 1);
    *reinterpret_cast<uint4*>(to) =
        make_uint4(Element::pack(low.x * factor, low.y * factor), Element::pack(low.z * factor, low.w * factor),
                   Element::pack(high.x * factor, high.y * factor), Element::pack(high.z * factor, high.w * factor));
  } else {
    *to = Element::round(*sums * factor);
  }
}

// Grid: tiles of kBlockM rows of every query head of every sequence.
template <class Config>
__device__ void sm80_backward_finish(const BackwardOptionArgs& args) {
  constexpr int kCount = Config::kAligned ? 8 : 1;
  constexpr int kPieces = Config::kHeadDim / kCount;  // of a row
  const BackwardArgs& base = args.base;
  const auto row_tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Config::kBlockM));
  const auto [sequence, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, base.num_heads_q);
  const SequenceSpan span = sequence_span<Config>(base, args.options, sequence);
  const int64 first = tile * Config::kBlockM;
  const int rows = static_cast<int>(max(min(span.seqlen_q - first, int64{Config::kBlockM}), int64{0}));
  const float* sums = sm80_dq_sums<Config>(args, span, head, first);
  auto* dq = static_cast<Bits16*>(base.dq) + base.dq_stride.offset(span.batch, head, span.q_begin + first);
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * kPieces; i += Config::kThreads) {
    const int row = i / kPieces, column = i % kPieces * kCount;
    sm80_store_rounded<ElementOf<Config>, kCount>(dq + row * base.dq_stride.row + column,
                                                  sums + row * sm80_depth(Config::kHeadDim) + column,
                                                  base.gradient_scale);
  }
}

}  // namespace attend
