// Matrix products of a computing warpgroup in the sm90 backward pass. Each function issues and commits its products,
// and the caller waits for them.
#pragma once

#include "../isa/wgmma_fresh.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_panel_fragment.cuh"

namespace attend {

// Returns the number of products of depth 16 that cover head_dim columns.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int products_of(int head_dim) {
  return (head_dim + kWgmmaDepth - 1) / kWgmmaDepth;
}

// Returns the byte offset from the first column of a tile of rows to the 16 columns of product i. Panels of the tile
// are `panel_bytes` bytes apart.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 product_offset(int i, uint32 panel_bytes) {
  constexpr int kProductsOfPanel = kPanelColumns / kWgmmaDepth;
  constexpr int kProductBytes = kWgmmaDepth * kBackwardElementBytes;
  return i / kProductsOfPanel * panel_bytes + i % kProductsOfPanel * kProductBytes;
}

// Issues product i of x += a b^T. `a` has 64 keys of k or v, and `b` the rows of the tile of q or dout.
template <class Config>
__device__ __forceinline__ void add_score_product(float (&x)[32], MatrixDescriptor a, MatrixDescriptor b, int i) {
  using Shape = BackwardShape<Config>;
  WgmmaOp<Config::kElement, 64>::template ss<false, 1>(x, a.advance(product_offset(i, Shape::kPanelBytesN)),
                                                       b.advance(product_offset(i, Shape::kPanelBytesM)), true);
}

// Issues x = a b^T. The sum runs over kHeadDim columns, without the padding.
template <class Config, int kHeadDim>
__device__ __forceinline__ void begin_scores(float (&x)[32], MatrixDescriptor a, MatrixDescriptor b) {
  WgmmaFresh<Config::kElement>::template ss<false>(x, a, b);
#pragma unroll
  for (int i = 1; i < products_of(kHeadDim); ++i) add_score_product<Config>(x, a, b, i);
  wgmma_commit();
}

// Issues x += a b^T. The sum runs over kHeadDim columns, without the padding.
template <class Config, int kHeadDim>
__device__ __forceinline__ void add_scores(float (&x)[32], MatrixDescriptor a, MatrixDescriptor b) {
#pragma unroll
  for (int i = 0; i < products_of(kHeadDim); ++i) add_score_product<Config>(x, a, b, i);
  wgmma_commit();
}

// Loads 64 rows of a tile into registers, as A operands. Products with these operands use only half of the shared
// memory bandwidth, so other warps can use the rest.
template <int kPairs>
__device__ __forceinline__ void hold_rows(uint32 (&pairs)[kPairs], uint32 tile, int thread) {
#pragma unroll
  for (int i = 0; i < kPairs; i += 16) {
    read_panel<false>(pairs + i, tile + i / 16 * kWarpgroupRows * kSwizzleBytes, thread);
  }
}
// Issues x = a b^T, with an operand `a` that hold_rows() loaded.
template <class Config, int kHeadDim>
__device__ __forceinline__ void begin_held_scores(float (&x)[32], const uint32* a, MatrixDescriptor b) {
  WgmmaFresh<Config::kElement>::template rs<false>(x, a, b);
#pragma unroll
  for (int i = 1; i < products_of(kHeadDim); ++i) {
    const MatrixDescriptor columns = b.advance(product_offset(i, BackwardShape<Config>::kPanelBytesM));
    WgmmaOp<Config::kElement, 64>::template rs<false, 1>(x, a + 4 * i, columns, true);
  }
  wgmma_commit();
}

// Issues x += a b. `a` has p or ds of 64 keys, and `b` the tile's rows of dout or q.
template <class Config, int kDepth>
__device__ __forceinline__ void begin_gradient(float (&x)[kDepth / 2], const uint32 (&a)[16], MatrixDescriptor b) {
#pragma unroll
  for (int i = 0; i < Config::kBlockM / kWgmmaDepth; ++i) {
    WgmmaOp<Config::kElement, kDepth>::template rs<true, 1>(x, a + 4 * i, b.advance(i * kWgmmaDepth * kSwizzleBytes),
                                                            true);
  }
  wgmma_commit();
}

// Returns (a0 b0, a1 b1), each rounded. Instruction: mul.bf16x2 (PTX ISA, half precision floating point).
[[nodiscard]] __device__ __forceinline__ uint32 multiply_bf16_pairs(uint32 a, uint32 b) {
  uint32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Sets accumulators to 0 before their first product.
template <int kCount>
__device__ __forceinline__ void fill_zero(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = 0.0f;
}

}  // namespace attend
