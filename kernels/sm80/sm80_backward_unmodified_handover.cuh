// Passes p through shared memory from the warps that sum dv to the warps that sum dk. p is passed in float. If ds were
// computed from the rounded p, its error would exceed the rounding error of the products.
#pragma once

#include "sm80_backward_unmodified_block.cuh"

namespace attend {

// p of one lane, as groups of four values. Thread t of one role has the same keys and query rows as thread t of the
// other role.
template <class Config>
struct Sm80Handover {
  static constexpr int kThreads = Config::kThreads / 2;
  static constexpr int kFours = Sm80UnmodifiedShape<Config>::kRows / 8;

  [[nodiscard]] static __device__ __forceinline__ int thread() { return recomputed_thread() % kThreads; }

  static __device__ __forceinline__ void send(Sm80BackwardStorage<Config>& smem, const Sm80PartScores<Config>& p) {
    const int mine = thread();
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * kFours; ++i) {
      const float* four = p[i / kFours] + i % kFours * 4;
      smem.p.four[i][mine] = make_float4(four[0], four[1], four[2], four[3]);
    }
  }

  // Replaces dp - delta by ds, using the p that the other role sent. is_whole states that no score of the warp is
  // masked.
  static __device__ __forceinline__ void receive_ds(Sm80PartScores<Config>& dp, const Sm80BackwardStorage<Config>& smem,
                                                    bool is_whole) {
    const int mine = thread();
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * kFours; ++i) {
      if (i % 2 == 0)
        __syncwarp();  // keeps later loads below this point, because they would occupy registers that dk needs
      const float4 four = smem.p.four[i][mine];
      const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& slope = dp[i / kFours][i % kFours * 4 + e];
        const float product = (kSm80ShiftsDs<ElementOf<Config>> ? each[e] : each[e] * kSm80Unshift<Config>)*slope;
        slope = is_whole || each[e] != 0.0f ? product : 0.0f;
      }
    }
  }
};

}  // namespace attend
