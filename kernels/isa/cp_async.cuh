// Asynchronous copies from global to shared memory that bypass registers, each of 16 or 4 bytes. PTX ISA, data
// movement: cp.async, cp.async.commit_group, cp.async.wait_group. sm_80 and later.
//
// A thread waits only for its own copies. A barrier afterwards makes other threads' copies visible too. The copies
// write through the generic proxy, like ordinary stores, so wgmma needs fence_smem_for_async() between wait and
// barrier.
#pragma once

#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// Copies 16 bytes, with both addresses aligned to 16. If is_inside is false, nothing is read and zeros are written. cg:
// cached only in L2, because shared memory holds the copy for reuse. "memory": no access to shared memory may be moved
// across it.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// As cp_async_16() for 4 bytes. .cg supports only 16 bytes, so these are cached in L1 too.
__device__ __forceinline__ void cp_async_4(uint32 smem, const void* gmem, bool is_inside) {
  const uint32 bytes = is_inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

// Copies 16 bytes unconditionally, without computing a condition.
__device__ __forceinline__ void cp_async_16(uint32 smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(gmem) : "memory");
}

// Puts the copies issued since the last commit into one group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the kPending youngest groups of this thread are in flight. "memory": reads of the copied data
// stay after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Arrives at the barrier once all copies issued so far by this thread have landed. This is one of the arrivals that the
// barrier expects.
__device__ __forceinline__ void cp_async_arrive(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&barrier)) : "memory");
}

}  // namespace attend
