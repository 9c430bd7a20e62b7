// Hardware barriers among some warps of a block. PTX ISA, "Parallel synchronization: bar.sync, bar.arrive".
// Numbers 1 to 15; 0 is __syncthreads(). `threads` counts all that arrive or wait, a multiple of 32.
#pragma once

#include "portable.cuh"

namespace attend {

// Arrives and waits for the others. "memory": shared memory is read and written on the side where the program says so.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arrives and goes on.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace attend
