// Copies from global to shared memory that pass by the registers: one chunk of 16 bytes each, or 4, in the background.
// PTX ISA, data movement: cp.async, cp.async.commit_group, cp.async.wait_group. sm_80 and later.
//
// A thread waits for its own copies only; a barrier afterwards makes those of the others visible as well. The copies
// write through the generic proxy, as ordinary stores do: wgmma wants fence_smem_for_async() between wait and barrier.
#pragma once

#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// 16 bytes, both sides aligned to them; with is_inside false nothing is read and zeros are written. cg: kept in L2
// only, since shared memory is the copy to reuse. "memory": no load or store of shared memory may pass it.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// 4 bytes, likewise: .cg takes 16 only, so these are kept in L1 too.
__device__ __forceinline__ void cp_async_4(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// 16 bytes without a condition, which costs nothing to compute.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(gmem) : "memory");
}

// The copies issued since the last commit become one group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the kPending youngest groups of this thread are under way. "memory": what was copied is read
// after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Arrives at the barrier when all copies of this thread so far have landed: one of the arrivals that it expects.
__device__ __forceinline__ void cp_async_arrive(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&barrier)) : "memory");
}

}  // namespace attend
