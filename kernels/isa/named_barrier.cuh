// The block's sixteen numbered barriers. PTX ISA, parallel synchronization: barrier.cta. Needs full warps. Number 0 is
// __syncthreads(). A barrier opens when kThreads threads have arrived, whether they wait at it or only arrive. The
// waiting threads then see the memory accesses of all of them.
#pragma once

namespace attend {

template <int kThreads>
__device__ __forceinline__ void barrier_wait(int number) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// As barrier_wait(), for warps that reach the barrier from different places in the code; all their threads take part.
// It compiles to one instruction too. But compute-sanitizer's synccheck expects the .aligned form at a single place.
template <int kThreads>
__device__ __forceinline__ void barrier_wait_of_roles(int number) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Arrives without waiting.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int number) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace attend
