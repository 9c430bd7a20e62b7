// Access to the shared memory and the barriers of other blocks of a cluster. PTX ISA: mapa, st.shared::cluster,
// mbarrier with .cluster scope, barrier.cluster. Requires sm_90.
#pragma once

#include "mbarrier.cuh"

namespace attend {

// Waits for all threads of the cluster's blocks that have not ended. Afterwards, their earlier writes to the shared
// memory of any block are visible.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Returns the address, in the cluster's address window, of the same place in the shared memory of the cluster's block
// `rank`.
[[nodiscard]] __device__ __forceinline__ uint32 cluster_address(uint32 address, uint32 rank) {
  uint32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Stores 16 bytes to another block's shared memory. The barrier of the other block counts them among its expected
// bytes. cluster_address() must have returned `address` and `barrier`, for the same block. A release to the cluster
// would need no byte count. But it would fence all stores of the thread, and take at least 600 clocks.
__device__ __forceinline__ void store_to_cluster(uint32 address, float4 x, uint32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

// Arrives at the barrier of the cluster's block `rank`. The arrival is ordered after this thread's reads, but not after
// its stores.
__device__ __forceinline__ void arrive_in_cluster(Mbarrier& barrier, uint32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(smem_address(&barrier), rank))
               : "memory");
}

}  // namespace attend
