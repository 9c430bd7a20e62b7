// Copies of contiguous bytes by the copy engine. PTX ISA, data movement: cp.async.bulk, cp.reduce.async.bulk. sm_90.
// Addresses and sizes are multiples of 16 bytes. Each call by one thread.
#pragma once

#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// Global to shared memory; the bytes count on `full`, to which they have been announced.
__device__ __forceinline__ void bulk_load(void* smem, const void* gmem, uint32 bytes, Mbarrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(smem)),
               "l"(gmem), "r"(bytes), "r"(smem_address(&full))
               : "memory");
}

// Adds floats of shared memory to those of global memory, each addition by itself atomic. What ordinary stores wrote to
// shared memory has to be fenced for it: fence_smem_for_async().
__device__ __forceinline__ void bulk_add(float* gmem, const float* smem, uint32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(gmem),
               "r"(smem_address(smem)), "r"(bytes)
               : "memory");
}

// Overwrites them instead.
__device__ __forceinline__ void bulk_store(float* gmem, const float* smem, uint32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem_address(smem)),
               "r"(bytes)
               : "memory");
}

// This thread's additions since the last commit become one group.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// This thread's groups have read their shared memory: it may be written again.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// This thread's groups are complete: their sums are in global memory.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace attend
