// Named barriers of a part of a block's threads. PTX ISA, "bar": ids 1 to 15, 0 being __syncthreads().
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Waits until `threads` threads have come, those that only arrive included. All of a warp call.
__device__ __forceinline__ void thread_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Comes to the barrier and goes on.
__device__ __forceinline__ void thread_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace attend
