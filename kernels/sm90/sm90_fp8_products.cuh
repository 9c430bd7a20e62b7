// Issues the two matrix products of a consumer of sm90_fp8_forward.
#pragma once

#include "../isa/wgmma_e4m3.cuh"
#include "sm90_fp8_shape.cuh"

namespace attend {

// Issues s = q k^T, or s = -q k^T if kNegateScores is set. s must not be accessed before wgmma_wait. q_smem is the
// shared-memory address of the warpgroup's first row of q.
template <class Config>
__device__ __forceinline__ void fp8_begin_qk(float (&s)[Sm90Fp8Shape<Config>::kScores], uint32 q_smem, uint32 k_smem) {
  static_assert(Config::kHeadDim % kE4M3Depth == 0 && Config::kHeadDim <= kSwizzleBytes);
  const MatrixDescriptor q = MatrixDescriptor::along_rows(q_smem);
  const MatrixDescriptor k = MatrixDescriptor::along_rows(k_smem);
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Config::kHeadDim / kE4M3Depth; ++i) {
    WgmmaE4M3<Config::kBlockN>::template ss<Config::kNegateScores ? -1 : 1>(s, q.advance(i * kE4M3Depth),
                                                                            k.advance(i * kE4M3Depth), i > 0);
  }
  wgmma_commit();
}

// Issues pv = p v of one key tile. The last columns of pv are sums of p. pv and p must not be accessed before
// wgmma_wait.
template <class Config>
__device__ __forceinline__ void fp8_begin_pv(float (&pv)[Sm90Fp8Shape<Config>::kSums],
                                             const uint32 (&p)[Sm90Fp8Shape<Config>::kFours], uint32 v_smem) {
  const MatrixDescriptor v = MatrixDescriptor::along_rows(v_smem);
  pin_registers(pv);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Config::kBlockN / kE4M3Depth; ++i) {
    WgmmaE4M3<Sm90Fp8Shape<Config>::kColumns>::rs(pv, p + 4 * i, v.advance(i * kE4M3Depth), i > 0);
  }
  wgmma_commit();
}

}  // namespace attend
