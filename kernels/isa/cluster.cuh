// Access to other blocks of a cluster: to their shared memory and their barriers. PTX ISA: mapa, st.shared::cluster,
// mbarrier with .cluster scope, barrier.cluster. sm_90.
#pragma once

#include "mbarrier.cuh"

namespace attend {

// Waits for all threads of all blocks of the cluster that have not ended. Their earlier writes to any block's shared
// memory are visible afterwards.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Returns the address of the same place in the shared memory of the cluster's block `rank`, in the cluster's address
// window.
[[nodiscard]] __device__ __forceinline__ uint32 cluster_address(uint32 address, uint32 rank) {
  uint32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Stores to another block's shared memory. The other block's barrier counts the store as 16 of its expected bytes. Both
// addresses come from cluster_address(), for the same block. A release to the cluster, instead of the barrier's byte
// count, would fence all of the thread's stores and take at least 600 clocks.
__device__ __forceinline__ void store_to_cluster(uint32 address, float4 x, uint32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

// Arrives at the barrier of the cluster's block `rank`, after this thread's reads. It does not order the thread's
// stores.
__device__ __forceinline__ void arrive_in_cluster(Mbarrier& barrier, uint32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(smem_address(&barrier), rank))
               : "memory");
}

}  // namespace attend
