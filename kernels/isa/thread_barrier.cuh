// Named barriers for some of a block's threads. PTX ISA: bar. The ids are 1 to 15, because id 0 is __syncthreads().
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Waits until `threads` threads have arrived, including threads that do not wait. All threads of a warp must call it.
__device__ __forceinline__ void thread_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at the barrier without waiting.
__device__ __forceinline__ void thread_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace attend
