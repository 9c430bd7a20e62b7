// Transforms (softcap) and bias in the wide kernels of the sm90 backward pass. Transforms are computed from reciprocals
// (score_transform.cuh). As in the forward pass, the bias is added before the factor log2(e) is applied, because the
// bias may be as low as -FLT_MAX.
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

// Returns the value that a hidden entry gets, so that its p becomes 0. With a transform, the value replaces the
// reciprocal r. With a bias, it replaces a score. Otherwise it replaces a product. scale_log2 is never 0.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float wide_unseen(const Sm90BackwardArgs& args) {
  if constexpr (Score<Config>::kTransforms) return kUnseenReciprocal;
  return Score<Config>::kAddsFromMemory ? -kInfinity : -kInfinity * args.scale_log2;
}

// Returns 2^p_bits p of a score with a bias. `lse` is a natural logarithm. p is limited to 1. It could exceed 1 if the
// rounding error of lse is larger than the differences between scores. p of such rows is later divided by its sum
// (lse_rounding.cuh).
template <class Config>
[[nodiscard]] __device__ __forceinline__ float probability_with_terms(float score, float lse) {
  static_assert(!Score<Config>::kTransforms);  // a transform's lse_offset would hide which lse are coarse
  constexpr auto kBits = static_cast<float>(sm90_backward_units(Config::kElement).p_bits);
  return exp2_fast(smaller_or_nan(fmaf(score - lse, kLog2E, kBits), kBits));
}

// The bias entries that belong to a thread's scores. The class is empty if there is no bias. If kTransposed is set, the
// accumulator's rows are keys.
template <class Config, bool kTransposed>
class WideTerms {};
template <class Config, bool kTransposed>
requires Score<Config>::kAddsFromMemory class WideTerms<Config, kTransposed>
    : public Sm90TermsFragment<TermsElementOf<Config>, kTransposed> {
};

// Loads kTiles bias tiles of one query head. Each tile has 64 rows and the 64 keys from `key` on. The first tile starts
// at `row`, and each further tile 64 rows later. Only one thread calls this.
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
