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

// "memory": stays before the arrival that announces it.
__device__ __forceinline__ void store_to_cluster(uint32 address, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}

// An arrival at the barrier of the cluster's block `rank`. What this thread did before, and those that it has
// synchronised with, is done for who waits there by wait_for_cluster().
__device__ __forceinline__ void arrive_in_cluster(Mbarrier& barrier, uint32 rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   cluster_address(smem_address(&barrier), rank))
               : "memory");
}

// Mbarrier::wait() for arrivals from other blocks.
__device__ __forceinline__ void wait_for_cluster(Mbarrier& barrier, uint32 parity) {
  uint32 done;
  do {
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(done)
        : "r"(smem_address(&barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}

}  // namespace attend
