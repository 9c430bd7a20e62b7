// Values that are cheap to compute again, and expensive to keep in registers.
#pragma once

#include "portable.cuh"

namespace attend {

// Returns the same number. The compiler computes values that are derived from the result again at each use. Otherwise
// it would keep them in registers across a loop, where accumulators need those registers. The asm is volatile so that
// the compiler does not merge it with identical ones.
template <class T>  // T has 32 or 64 bits
[[nodiscard]] __device__ __forceinline__ T recomputed(T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

[[nodiscard]] __device__ __forceinline__ int recomputed_thread() {
  return recomputed(static_cast<int>(threadIdx.x));
}

}  // namespace attend
