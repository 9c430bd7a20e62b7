// Barriers in shared memory that count arrivals and bytes. PTX ISA, "Parallel synchronization: mbarrier". Requires
// sm_90. On sm_80, only init and arrive_and_wait are available.
//
// A phase ends when the expected arrivals have been made and the expected bytes have been written. Then the next phase
// begins. A wait names the parity of its phase, which is 0 for the first phase, then 1, then 0. A wait for parity 1 on
// a new barrier returns at once. This suits a thread that fills an empty buffer for the first time.
#pragma once

#include "../common/portable.cuh"
#include "smem_address.cuh"

namespace attend {

struct alignas(8) Mbarrier {
  uint64 state;

  // Initialises the barrier. One thread calls it. mbarrier_init_fence() and a barrier of the block must follow.
  __device__ __forceinline__ void init(uint32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(arrivals) : "memory");
  }

  // Arrives at the barrier. The clobber "memory" keeps earlier reads and writes of this thread before the arrival.
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(this)) : "memory");
  }

  // Arrives, and adds the number of bytes that copies will write before the phase ends. A box that is clipped at the
  // border of its tensor counts in full.
  __device__ __forceinline__ void arrive_expect_bytes(uint32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(this)), "r"(bytes)
                 : "memory");
  }

  // Adds expected bytes without arriving.
  __device__ __forceinline__ void expect_bytes(uint32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(bytes)
                 : "memory");
  }

  // Returns whether the phase has ended. The hardware may suspend the thread for a while before the function returns
  // false. The clobber "memory" keeps reads of the awaited data behind the wait.
  [[nodiscard]] __device__ __forceinline__ bool try_wait(uint32 parity) {
    uint32 done;
    asm volatile(
        "{\n.reg .pred done;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
#else
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(done)
        : "r"(smem_address(this)), "r"(parity)
        : "memory");
    return done != 0;
  }

  __device__ __forceinline__ void wait(uint32 parity) {
    while (!try_wait(parity)) {
    }
  }

  // Arrives, and waits until the phase of this arrival ends. The caller need not track the parity.
  __device__ __forceinline__ void arrive_and_wait() {
    asm volatile(
        "{\n.reg .b64 phase;\n.reg .pred done;\n"
        "mbarrier.arrive.shared::cta.b64 phase, [%0];\n"
        "AGAIN:\n"
        "mbarrier.test_wait.shared::cta.b64 done, [%0], phase;\n"
        "@!done bra AGAIN;\n}\n" ::"r"(smem_address(this))
        : "memory");
  }
};

// Number of lanes that arrive for a warp. Only one lane arrives, because arrivals at a barrier are serialised.
// __syncwarp or the warp's products must order the accesses of the other lanes before the arrival. The racecheck tool
// of compute-sanitizer tracks only the accesses of the arriving thread, so all lanes must arrive when it runs
// (tools/gpu_test.py).
constexpr uint32 kLanesThatArrive = 1;

// Returns the number of arrivals that `warps` warps make, for Mbarrier::init().
[[nodiscard]] __device__ __forceinline__ constexpr uint32 arrivals_of_warps(uint32 warps) {
  return warps * kLanesThatArrive;
}

// Arrives once for the warp. All lanes call it.
__device__ __forceinline__ void arrive_as_warp(Mbarrier& barrier) {
  if (threadIdx.x % 32 < kLanesThatArrive) barrier.arrive();
}

// Makes newly initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Position of one thread or warp in a ring of kStages buffers. It consists of the number of the buffer, and the parity
// of the phase of the buffer's barrier.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace attend
