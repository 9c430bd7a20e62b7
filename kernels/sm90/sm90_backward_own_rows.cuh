// Computes dq in the sm90 backward pass if all key blocks of a head belong to one thread block (kOwnsHeads).
//
// The thread block has float sums for one head in memory, and reuses them for its next head. If sequences are short,
// the sums of all thread blocks together stay in the L2 cache. The first key block that a query tile sees stores its
// contribution to dq. Later key blocks add theirs. The last key block starts its accumulators from the sums and rounds
// the result. So no kernel has to clear the sums before or to round them afterwards, and the order of additions is
// always the same.
#pragma once

#include "sm90_backward_products.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_store.cuh"

namespace attend {

// Makes ordinary memory accesses to the sums visible to later bulk copies, and the results of bulk copies visible to
// later ordinary accesses.
__device__ __forceinline__ void fence_sums_for_async() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Initialises the accumulator of one pass from the warp's sums, or with 0 if `sums` is null. The loads bypass the L1
// cache, because it may hold sums of another head.
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

// The 16 rows of a query tile that one warp of the dq warpgroup computes.
template <class Config>
struct BackwardOwnRows {
  const Sm90BackwardArgs& args;
  const Sm90BackwardItem& item;
  int row;  // first row, as an index in the sequence

  // Rounds and stores the columns that one pass computes.
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
