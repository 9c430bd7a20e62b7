// Transforms (softcap) and bias in the wide kernels of the sm90 backward pass. Transforms are computed with reciprocals
// (score_transform.cuh). The bias is added in natural units, as in the forward pass, because it may be as low as
// -FLT_MAX.
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/score_transform.cuh"
#include "../attention/terms.cuh"
#include "../common/numbers.cuh"
#include "../common/smaller_or_nan.cuh"
#include "../tiles/tma_panel.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_backward_wide_storage.cuh"
#include "sm90_terms_tile.cuh"

namespace attend {

// Returns the value of an unseen entry, which makes its p 0. It is r of a transform, a score with a bias, or otherwise
// a product. scale_log2 is never 0.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float wide_unseen(const Sm90BackwardArgs& args) {
  if constexpr (Score<Config>::kTransforms) return kUnseenReciprocal;
  return Score<Config>::kAddsFromMemory ? -kInfinity : -kInfinity * args.scale_log2;
}

// Returns 2^p_bits p of a score with a bias. lse is in natural units. p is limited to 1, because it could exceed 1 if
// the rounding of lse is coarser than the differences of scores. p of such rows is then divided by its sum:
// lse_rounding.cuh.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float probability_with_terms(float score, float lse) {
  static_assert(!Score<Config>::kTransforms);  // its lse_offset would hide which lse are coarse
  constexpr auto kBits = static_cast<float>(sm90_backward_units(Config::kElement).p_bits);
  return exp2_fast(smaller_or_nan(fmaf(score - lse, kLog2E, kBits), kBits));
}

// Bias entries of a thread's scores; empty if there is no bias. kTransposed: rows of the accumulator are keys.
template <class Config, bool kTransposed>
class WideTerms {};
template <class Config, bool kTransposed>
requires Score<Config>::kAddsFromMemory class WideTerms<Config, kTransposed>
    : public Sm90TermsFragment<TermsElementOf<Config>, kTransposed> {
};

// Loads kTiles bias tiles of 64 keys from `key` on and 64 rows each from `row` on. One thread calls it. head: query
// head.
template <int kTiles>
__device__ __forceinline__ void load_wide_terms(unsigned char (*to)[kBackwardTermsBytes], const Sm90BackwardArgs& args,
                                                Mbarrier& full, int key, int row, int head, int batch) {
  const TensorStrides& stride = terms_stride(args.options);
  full.arrive_expect_bytes(kTiles * kBackwardTermsBytes);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    tma_load_panel(smem_address(to[i]), args.terms_map, full,
                   {key, row + i * kBackwardRows, stride.head == 0 ? 0 : head, stride.batch == 0 ? 0 : batch});
  }
}

}  // namespace attend
