// The products of a computing warpgroup of the sm90 backward pass, each begun and committed, and one of its own.
#pragma once

#include "../isa/wgmma_fresh.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// x = a b^T, or with kAdds x += a b^T: 64 keys of k or v times the tile's rows of q or dout, over the kHeadDim columns
// that exist.
template <class Config, int kHeadDim, bool kAdds>
__device__ __forceinline__ void begin_scores(float (&x)[32], MatrixDescriptor a, MatrixDescriptor b) {
  using Shape = BackwardShape<Config>;
  constexpr int kStepsOfPanel = kPanelColumns / kWgmmaDepth;
  constexpr int kStepBytes = kWgmmaDepth * sizeof(Bits16);
  if constexpr (!kAdds) WgmmaFresh<Config::kElement>::template ss<false>(x, a, b);
#pragma unroll
  for (int i = kAdds ? 0 : 1; i < (kHeadDim + kWgmmaDepth - 1) / kWgmmaDepth; ++i) {
    const uint32 in_panel = i % kStepsOfPanel * kStepBytes;
    WgmmaOp<Config::kElement, 64>::template ss<false, 1>(
        x, a.advance(i / kStepsOfPanel * Shape::kPanelBytesN + in_panel),
        b.advance(i / kStepsOfPanel * Shape::kPanelBytesM + in_panel), true);
  }
  wgmma_commit();
}

// 64 rows of a tile to registers, as A operands: the products then leave half of shared memory's bandwidth to others.
template <int kPairs>
__device__ __forceinline__ void hold_rows(uint32 (&pairs)[kPairs], uint32 tile, int thread) {
#pragma unroll
  for (int i = 0; i < kPairs; i += 16) {
    read_panel<false>(pairs + i, tile + i / 16 * kWarpgroupRows * kSwizzleBytes, thread);
  }
}
// begin_scores() of rows that registers hold: x = a b^T.
template <class Config, int kHeadDim, int kPairs>
__device__ __forceinline__ void begin_held_scores(float (&x)[32], const uint32 (&a)[kPairs], MatrixDescriptor b) {
  constexpr int kStepsOfPanel = kPanelColumns / kWgmmaDepth;
  constexpr int kStepBytes = kWgmmaDepth * sizeof(Bits16);
  WgmmaFresh<Config::kElement>::template rs<false>(x, a, b);
#pragma unroll
  for (int i = 1; i < (kHeadDim + kWgmmaDepth - 1) / kWgmmaDepth; ++i) {
    const uint32 at = i / kStepsOfPanel * BackwardShape<Config>::kPanelBytesM + i % kStepsOfPanel * kStepBytes;
    WgmmaOp<Config::kElement, 64>::template rs<false, 1>(x, a + 4 * i, b.advance(at), true);
  }
  wgmma_commit();
}

// x += a b: 64 keys of p or ds times the tile's rows of dout or q.
template <class Config, int kDepth>
__device__ __forceinline__ void begin_gradient(float (&x)[kDepth / 2], const uint32 (&a)[16], MatrixDescriptor b) {
#pragma unroll
  for (int i = 0; i < Config::kBlockM / kWgmmaDepth; ++i) {
    WgmmaOp<Config::kElement, kDepth>::template rs<true, 1>(x, a + 4 * i, b.advance(i * kWgmmaDepth * kSwizzleBytes),
                                                            true);
  }
  wgmma_commit();
}

// (a0 b0, a1 b1), each rounded. PTX ISA, half precision floating point: mul.bf16x2.
[[nodiscard]] __device__ __forceinline__ uint32 multiply_bf16_pairs(uint32 a, uint32 b) {
  uint32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace attend
