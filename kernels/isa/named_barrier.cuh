// The sixteen numbered barriers of a block. PTX ISA, parallel synchronization: barrier.cta. All lanes of a warp must
// call the functions. Barrier 0 is __syncthreads(). A barrier opens when kThreads threads have arrived, whether they
// wait at the barrier or only arrive. The waiting threads then see the memory accesses of all these threads.
#pragma once

namespace attend {

template <int kThreads>
__device__ __forceinline__ void barrier_wait(int number) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Waits like barrier_wait(), for warps that reach the barrier from different places in the code. All of their threads
// must call it. The function also compiles to one instruction. It exists because synccheck of compute-sanitizer expects
// the .aligned form at a single place in the code.
template <int kThreads>
__device__ __forceinline__ void barrier_wait_of_roles(int number) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Arrives at the barrier without waiting.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int number) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace attend
