// A flag word in device memory. It publishes data that was written before the flag. PTX ISA, memory consistency model:
// st.release, ld.acquire. The flag also publishes writes of other threads, if a barrier separates them from the
// release.
#pragma once

#include "../common/portable.cuh"

namespace attend {

__device__ __forceinline__ void store_release(uint32* to, uint32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
[[nodiscard]] __device__ __forceinline__ uint32 load_acquire(const uint32* from) {
  uint32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

}  // namespace attend
