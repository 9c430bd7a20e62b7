// Issues the two matrix products of a consumer warpgroup, s = q k^T and o += p v. The warpgroup has 64 query rows. All
// tiles are in shared memory as swizzled panels of 64 columns.
#pragma once

#include "../common/element.cuh"
#include "../isa/wgmma_widths.cuh"
#include "sm90_forward_shape.cuh"

namespace attend {

template <class Config>
struct Sm90Fragments {
  static constexpr int kScores = Config::kBlockN / 2;  // scores that each thread holds
  static constexpr int kPairs = Config::kBlockN / 4;   // pairs of 16-bit values of p that each thread holds
  static constexpr int kOutputs = Sm90Shape<Config>::kColumnsV / 2;
};

// Issues s = q k^T, or s = -q k^T if kNegateScores is set. s must not be accessed before wgmma_wait. q_smem is the
// shared-memory address of the warpgroup's first row of q.
template <class Config>
__device__ __forceinline__ void sm90_begin_qk(float (&s)[Sm90Fragments<Config>::kScores], uint32 q_smem,
                                              uint32 k_smem) {
  using Op = WgmmaOp<Config::kElement, Config::kBlockN>;
  constexpr int kStepsOfPanel = kPanelColumns / kWgmmaDepth;
  const MatrixDescriptor q = MatrixDescriptor::along_rows(q_smem);
  const MatrixDescriptor k = MatrixDescriptor::along_rows(k_smem);
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Sm90Shape<Config>::kQkSteps; ++i) {
    const uint32 in_panel = i % kStepsOfPanel * kWgmmaDepth * sizeof(Bits16);
    Op::template ss<false, Config::kNegateScores ? -1 : 1>(
        s, q.advance(i / kStepsOfPanel * Sm90Shape<Config>::kPanelBytesQ + in_panel),
        k.advance(i / kStepsOfPanel * Sm90Shape<Config>::kPanelBytesK + in_panel), i > 0);
  }
  wgmma_commit();
}

// Issues o += p v. o and p must not be accessed before wgmma_wait.
template <class Config>
__device__ __forceinline__ void sm90_begin_pv(float (&o)[Sm90Fragments<Config>::kOutputs],
                                              const uint32 (&p)[Sm90Fragments<Config>::kPairs], uint32 v_smem) {
  using Op = WgmmaOp<Config::kElement, Sm90Shape<Config>::kColumnsV>;
  const MatrixDescriptor v = MatrixDescriptor::down_columns(v_smem, Sm90Shape<Config>::kPanelBytesK);
  pin_registers(o);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Config::kBlockN / kWgmmaDepth; ++i) {
    Op::template rs<true, 1>(o, p + 4 * i, v.advance(i * kWgmmaDepth * kSwizzleBytes), true);
  }
  wgmma_commit();
}

}  // namespace attend
