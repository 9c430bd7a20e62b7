// Float sums of dk and dv that one thread block writes for another, if a key block is split between two thread blocks.
#pragma once

#include "../isa/thread_barrier.cuh"
#include "sm90_backward_storage.cuh"

namespace attend {

// The computing warpgroups use this class. Each warpgroup has 64 keys, and its sums in memory have the same layout as
// its accumulators. `slot` is the number of the thread block that writes the sums.
template <class Config>
struct BackwardPartialSums {
  using Shape = BackwardShape<Config>;
  static constexpr int kVectors = (Shape::kDepth + Shape::kDepthV) / 8;  // float4 vectors of each thread
  const Sm90BackwardArgs& args;
  int warpgroup;

  __device__ __forceinline__ void leave(int slot, const float (&dk)[Shape::kDepth / 2],
                                        const float (&dv)[Shape::kDepthV / 2]) const {
    float4* to = vectors(slot);
#pragma unroll
    for (int i = 0; i < Shape::kDepth / 2; i += 4, to += kWarpgroup) {
      __stcg(to, make_float4(dk[i], dk[i + 1], dk[i + 2], dk[i + 3]));
    }
#pragma unroll
    for (int i = 0; i < Shape::kDepthV / 2; i += 4, to += kWarpgroup) {
      __stcg(to, make_float4(dv[i], dv[i + 1], dv[i + 2], dv[i + 3]));
    }
    __threadfence();                                 // makes this thread's sums visible to the device
    thread_barrier_sync(2 + warpgroup, kWarpgroup);  // the sums of all threads of the warpgroup are visible
    if (threadIdx.x % kWarpgroup != 0) return;
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ready(slot)), "r"(1) : "memory");
  }

  __device__ __forceinline__ void add(int slot, float (&dk)[Shape::kDepth / 2], float (&dv)[Shape::kDepthV / 2]) const {
    uint32 is_ready;
    // Wait until the sums are visible. The other thread block computes these sums first in its run, before it waits for
    // any sums. So it never depends on this thread block.
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_ready) : "l"(ready(slot)) : "memory");
    } while (is_ready == 0);
    const float4* from = vectors(slot);
#pragma unroll
    for (int i = 0; i < Shape::kDepth / 2; i += 4, from += kWarpgroup) {
      add4(dk + i, __ldcg(from));
      if (i % 32 == 28) __syncwarp();  // limits the loads in flight to 8, because each needs registers
    }
#pragma unroll
    for (int i = 0; i < Shape::kDepthV / 2; i += 4, from += kWarpgroup) {
      add4(dv + i, __ldcg(from));
      if (i % 32 == 28) __syncwarp();
    }
  }

 private:
  [[nodiscard]] __device__ __forceinline__ float4* vectors(int slot) const {
    return reinterpret_cast<float4*>(args.partial_sums) +
           (int64{slot} * Shape::kWarpgroups + warpgroup) * (kVectors * kWarpgroup) + threadIdx.x % kWarpgroup;
  }
  [[nodiscard]] __device__ __forceinline__ uint32* ready(int slot) const {
    return args.partial_ready + slot * Shape::kWarpgroups + warpgroup;
  }
  static __device__ __forceinline__ void add4(float* x, float4 y) {
    x[0] += y.x;
    x[1] += y.y;
    x[2] += y.z;
    x[3] += y.w;
  }
};

}  // namespace attend
