// Asynchronous copies from global to shared memory that bypass registers. A copy has 16 or 4 bytes. PTX ISA, data
// movement: cp.async, cp.async.commit_group, cp.async.wait_group. Requires sm_80 or later.
//
// A thread waits only for its own copies. A barrier after the wait makes the copies of other threads visible too. The
// copies write through the generic proxy, like ordinary stores. So if wgmma reads the data, fence_smem_for_async() is
// needed between the wait and the barrier.
#pragma once

#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// Copies 16 bytes between addresses that are multiples of 16. If is_inside is false, nothing is read and zeros are
// written. The modifier .cg caches the data only in L2, because shared memory holds it for reuse. The clobber "memory"
// keeps accesses to shared memory from being moved across the copy.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// Copies 4 bytes like the function above copies 16 bytes. The modifier .cg supports only 16 bytes, so these copies are
// cached in L1 too.
__device__ __forceinline__ void cp_async_4(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// Copies 16 bytes unconditionally, which saves the computation of a condition.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(gmem) : "memory");
}

// Puts this thread's copies since the last commit into one group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the kPending youngest groups of this thread are in flight. The clobber "memory" keeps reads of
// the copied data behind the wait.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Arrives at the barrier when all copies that this thread has issued so far have arrived. The barrier must count this
// arrival among those that it expects.
__device__ __forceinline__ void cp_async_arrive(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&barrier)) : "memory");
}

}  // namespace attend
