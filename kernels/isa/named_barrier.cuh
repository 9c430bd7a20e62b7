// The block's sixteen numbered barriers. PTX ISA, parallel synchronization: barrier.cta. By whole warps.
// Number 0 is __syncthreads(). A barrier opens when kThreads have come, whether they wait at it or only arrive; memory
// accesses of those who came are then visible to those who waited.
#pragma once

namespace attend {

template <int kThreads>
__device__ __forceinline__ void barrier_wait(int number) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// The same for warps of a block that come from different places of the code, all of whose threads take part. It is one
// instruction too; but what says that it is aligned compute-sanitizer's synccheck takes for one place.
template <int kThreads>
__device__ __forceinline__ void barrier_wait_of_roles(int number) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Comes and goes on.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int number) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace attend
