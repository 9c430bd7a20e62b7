// cp.async: copies from global to shared memory that run beside the threads that asked for them.
// PTX ISA, Data movement: cp.async, cp.async.commit_group, cp.async.wait_group. sm_80 and newer.
#pragma once

#include "portable.cuh"

namespace attend {

// 16 bytes, past the L1 cache; both addresses on 16 bytes. Scope: thread. volatile: it has no result to keep it alive.
// "memory": it must not pass the barrier after which its destination is free.
__device__ __forceinline__ void cp_async_16(uint32 smem_address, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address), "l"(source) : "memory");
}

// The same where is_there; else 16 zero bytes, and the source is not read.
__device__ __forceinline__ void cp_async_16_or_zero(uint32 smem_address, const void* source, bool is_there) {
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address), "l"(source), "r"(bytes) : "memory");
}

// The thread's copies since the last commit become a group. "memory": no copy may pass it either way.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than kPending of the thread's newest groups are still on their way. What the others brought is
// visible to this thread; to the block after a barrier. "memory": reads of it must not pass the wait.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace attend
