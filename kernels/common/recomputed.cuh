// Numbers that are cheap to compute again and dear to keep.
#pragma once

#include "portable.cuh"

namespace attend {

// The same number, but values computed from it are computed again at each use. The compiler would otherwise keep them
// in registers across a loop, and accumulators need those. volatile: the statement is not merged with others like it.
template <class T>  // of 32 bits, or of 64
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
