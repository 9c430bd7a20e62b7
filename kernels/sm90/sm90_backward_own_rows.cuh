// kOwnsHeads: dq of heads whose key blocks all belong to one block of the grid, in the sm90 backward pass.
//
// Such a block has room for the sums of one head, and uses it again for the next: the sums of all blocks together stay
// in the L2 cache as long as heads are short. The first key block that a tile of rows sees stores its pass, later ones
// add theirs, and the last one begins its accumulators at the sums and rounds them. So nothing clears sums before, no
// kernel rounds them behind, and the order of additions is always the same.
#pragma once

#include "sm90_backward_products.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_store.cuh"

namespace attend {

// Between ordinary accesses to the sums and those of the copy engine, in either order.
__device__ __forceinline__ void fence_sums_for_async() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// The accumulator of one pass begins at these sums of the warp's, or at 0. They bypass the L1 cache, which may have
// those of another head.
__device__ __forceinline__ void load_own_sums(float (&acc)[32], const float* sums) {
  if (sums == nullptr) return fill_zero(acc);
  const auto* const from = reinterpret_cast<const float4*>(sums) + threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 sum = __ldcg(from + j * 32);
    acc[4 * j] = sum.x;
    acc[4 * j + 1] = sum.y;
    acc[4 * j + 2] = sum.z;
    acc[4 * j + 3] = sum.w;
  }
}

// The 16 rows of a tile that a warp of the query warpgroup has.
template <class Config>
struct BackwardOwnRows {
  const Sm90BackwardArgs& args;
  const Sm90BackwardItem& item;
  int row;  // the first, in the sequence

  // The columns of a pass.
  template <int kPass>
  __device__ __forceinline__ void store(const float (&acc)[32]) const {
    constexpr int kFirst = kPass * kBackwardPassColumns;
    constexpr int kColumns =
        Config::kHeadDim - kFirst < kBackwardPassColumns ? Config::kHeadDim - kFirst : kBackwardPassColumns;
    if constexpr (kColumns > 0) {
      const BackwardArgs& base = args.base;
      const int64 at = item.span().query_offset(base.dq_stride, item.head, row) + kFirst;
      store_gradient<Config, kColumns>(acc, base.gradient_scale, base.dq, at, base.dq_stride.row, item.seqlen_q - row,
                                       (base.overwritten & kOverwritesQueries) != 0);
    }
  }
};

}  // namespace attend
