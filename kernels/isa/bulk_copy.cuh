// Copies of contiguous bytes by the copy engine. PTX ISA, data movement: cp.async.bulk, cp.reduce.async.bulk. Requires
// sm_90. Addresses and sizes must be multiples of 16 bytes. One thread makes each call.
#pragma once

#include "../common/portable.cuh"
#include "mbarrier.cuh"
#include "smem_address.cuh"

namespace attend {

// Copies bytes from global to shared memory. The caller must already have added their number to the expected bytes of
// `full`.
__device__ __forceinline__ void bulk_load(void* smem, const void* gmem, uint32 bytes, Mbarrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(smem)),
               "l"(gmem), "r"(bytes), "r"(smem_address(&full))
               : "memory");
}

// Adds floats in shared memory to floats in global memory. Each addition is atomic. If ordinary stores wrote the shared
// memory, fence_smem_for_async() must follow them.
__device__ __forceinline__ void bulk_add(float* gmem, const float* smem, uint32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(gmem),
               "r"(smem_address(smem)), "r"(bytes)
               : "memory");
}

// Copies floats from shared memory to global memory. See bulk_add() for the required fence.
__device__ __forceinline__ void bulk_store(float* gmem, const float* smem, uint32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem_address(smem)),
               "r"(bytes)
               : "memory");
}

// Puts this thread's operations since the last commit into one group.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's groups have read their shared memory, which may then be overwritten.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's groups are complete. Their results are then in global memory.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace attend
