// Blocks of a cluster: their shared memory as each other's, and barriers that others of them arrive at.
// PTX ISA: mapa, st.shared::cluster, mbarrier with .cluster scope, barrier.cluster. sm_90.
#pragma once

#include "mbarrier.cuh"

namespace attend {

// Waits for all threads of all blocks of the cluster, but for those that have ended. What they wrote before, to any
// block's shared memory, can be read behind it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The same place in the shared memory of the cluster's block `rank`: an address in the cluster's window.
[[nodiscard]] __device__ __forceinline__ uint32 cluster_address(uint32 address, uint32 rank) {
  uint32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// To another block's shared memory, counted there by its barrier as 16 of the bytes that it expects. Both addresses
// from cluster_address(), of one block. A release to the cluster in place of the barrier's bytes would be a fence of
// all that the thread has stored, 600 clocks and more.
__device__ __forceinline__ void store_to_cluster(uint32 address, float4 x, uint32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

// An arrival at the barrier of the cluster's block `rank`, behind this thread's reads. Not for what it has stored.
__device__ __forceinline__ void arrive_in_cluster(Mbarrier& barrier, uint32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(smem_address(&barrier), rank))
               : "memory");
}

}  // namespace attend
