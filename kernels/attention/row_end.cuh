// The end of a query row: o and lse from the sums over the row's keys.
#pragma once

#include "../common/args.cuh"
#include "../common/portable.cuh"
#include "score_mods.cuh"

namespace attend {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Of one query head of one sequence.
template <class Config>
struct RowEnd {
  float kept;  // factor of entries of p that are not dropped

  [[nodiscard]] static __device__ __forceinline__ RowEnd of(const OptionArgs& options, uint32 /*sequence*/,
                                                            uint32 /*head*/) {
    return {kept_scale<Config>(options)};
  }

  // The row's lse, from that of its keys, -inf if it sees none.
  [[nodiscard]] __device__ __forceinline__ float lse(float of_keys) const { return of_keys; }

  // What the sum of p v, p relative to the row's maximum, is multiplied by to make o. inverse_sum: 1 / sum p, 0 if the
  // row sees no key.
  [[nodiscard]] __device__ __forceinline__ float factor(float inverse_sum, float /*lse_of_keys*/) const {
    return inverse_sum * kept;
  }
};

#endif

}  // namespace attend
