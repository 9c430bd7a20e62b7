// Barriers in shared memory that count arrivals and bytes. PTX ISA, "Parallel synchronization: mbarrier". sm_90; sm_80
// has init and arrive_and_wait.
//
// A phase ends when the expected arrivals have come and the announced bytes have landed; then the next begins. A wait
// names the parity of the phase it waits for: 0 for the first, then 1, then 0. Waiting on parity 1 of a fresh barrier
// returns at once, which is what whoever fills an empty buffer for the first time wants.
#pragma once

#include "../common/portable.cuh"
#include "smem_address.cuh"

namespace attend {

struct alignas(8) Mbarrier {
  uint64 state;

  // By one thread, followed by mbarrier_init_fence() and a barrier of the block.
  __device__ __forceinline__ void init(uint32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(arrivals) : "memory");
  }

  // "memory": what this thread read or wrote before stays before.
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(this)) : "memory");
  }

  // Arrives, and says that copies will bring this many bytes before the phase ends: whole boxes, clipped or not.
  __device__ __forceinline__ void arrive_expect_bytes(uint32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(this)), "r"(bytes)
                 : "memory");
  }

  // Says so and does not arrive.
  __device__ __forceinline__ void expect_bytes(uint32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(bytes)
                 : "memory");
  }

  // Has the phase ended? The hardware may hold the thread for a while before it says no. "memory": reads of what was
  // waited for stay after it.
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

  // Arrives, and waits for the phase that it arrived in. The caller counts no phases.
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

// Lanes that arrive where a warp arrives as one, behind what orders the others before them (__syncwarp, or the warp's
// products): one, since arrivals at a barrier come one after the other. compute-sanitizer's racecheck follows nothing
// but a thread's own arrival, so that under it all have to (tools/gpu_test.py).
constexpr uint32 kLanesThatArrive = 1;

// The arrivals of so many warps, for Mbarrier::init.
[[nodiscard]] __device__ __forceinline__ constexpr uint32 arrivals_of_warps(uint32 warps) {
  return warps * kLanesThatArrive;
}

// Once for the warp, all of whose lanes come here.
__device__ __forceinline__ void arrive_as_warp(Mbarrier& barrier) {
  if (threadIdx.x % 32 < kLanesThatArrive) barrier.arrive();
}

// Makes freshly initialised barriers known to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Where a user of a ring of kStages buffers is: the buffer, and the parity of its barrier's phase.
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
