// Issues the two matrix products of a consumer of sm90_f32_forward. Each operand has a high and a low piece:
//   a b = a_high b_low + a_low b_high + a_high b_high
// The product a_low b_low is below 2^-22 of the result and is left out. Tensor cores truncate each sum to 24 bits. The
// small products come first, because truncation loses little while the sum holds only small products.
#pragma once

#include "../isa/wgmma_widths.cuh"
#include "sm90_f32_shape.cuh"

namespace attend {

constexpr int kPieceProducts = 3;

// first_piece() and second_piece() return which piece of the first and of the second operand a product reads.
[[nodiscard]] __device__ __forceinline__ constexpr Piece first_piece(int product) {
  return product == 1 ? kLowPiece : kHighPiece;
}
[[nodiscard]] __device__ __forceinline__ constexpr Piece second_piece(int product) {
  return product == 0 ? kLowPiece : kHighPiece;
}

// p of a thread, as pairs of adjacent entries. Each piece is an A operand.
template <class Config>
struct F32Weights {
  uint32 piece[kPieces][Sm90F32Shape<Config>::kPairs];
};

// Issues s = q k^T, or s = -q k^T if kNegateScores is set. s must not be accessed before wgmma_wait. q_smem is the
// shared-memory address of the warpgroup's first row in the high piece of q.
template <class Config>
__device__ __forceinline__ void f32_begin_qk(float (&s)[Sm90F32Shape<Config>::kScores], uint32 q_smem, uint32 k_smem) {
  using Shape = Sm90F32Shape<Config>;
  using Op = WgmmaOp<ElementType::kF16, Config::kBlockN>;
  constexpr int kStepsOfPanel = kPanelColumns / kWgmmaDepth;
  const MatrixDescriptor q = MatrixDescriptor::along_rows(q_smem);
  const MatrixDescriptor k = MatrixDescriptor::along_rows(k_smem);
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int product = 0; product < kPieceProducts; ++product) {
    const int q_piece = first_piece(product) * Shape::kQBytes, k_piece = second_piece(product) * Shape::kKBytes;
#pragma unroll
    for (int i = 0; i < Shape::kQkSteps; ++i) {
      const int in_panel = i % kStepsOfPanel * kWgmmaDepth * int{sizeof(Bits16)};
      Op::template ss<false, Config::kNegateScores ? -1 : 1>(
          s, q.advance(q_piece + i / kStepsOfPanel * Shape::kPanelBytesQ + in_panel),
          k.advance(k_piece + i / kStepsOfPanel * Shape::kPanelBytesK + in_panel), product > 0 || i > 0);
    }
  }
  wgmma_commit();
}

// Issues pv = p v of one key tile. pv and p must not be accessed before wgmma_wait.
template <class Config>
__device__ __forceinline__ void f32_begin_pv(float (&pv)[Sm90F32Shape<Config>::kOutputs], const F32Weights<Config>& p,
                                             uint32 v_smem) {
  using Shape = Sm90F32Shape<Config>;
  using Op = WgmmaOp<ElementType::kF16, Shape::kColumnsV>;
  const MatrixDescriptor v = MatrixDescriptor::down_columns(v_smem, Shape::kPanelBytesK);
  pin_registers(pv);
  wgmma_fence();
#pragma unroll
  for (int product = 0; product < kPieceProducts; ++product) {
    const int v_piece = second_piece(product) * Shape::kVBytes;
#pragma unroll
    for (int i = 0; i < Config::kBlockN / kWgmmaDepth; ++i) {
      Op::template rs<true, 1>(pv, p.piece[first_piece(product)] + 4 * i,
                               v.advance(v_piece + i * kWgmmaDepth * kSwizzleBytes), product > 0 || i > 0);
    }
  }
  wgmma_commit();
}

}  // namespace attend
