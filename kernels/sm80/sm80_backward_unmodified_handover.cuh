// Passes p from the warps that sum dv to those that sum dk, through shared memory, in float. If p were rounded for ds
// as for dv, its error would exceed the rounding of the products.
#pragma once

#include "sm80_backward_unmodified_block.cuh"

namespace attend {

// The numbers of a lane and group of 16 keys, in groups of four. Thread t of either role has the same keys and rows.
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

  // Replaces dp - delta by ds, using the p that the other role sent. is_whole: no score of the warp is masked.
  static __device__ __forceinline__ void receive_ds(Sm80PartScores<Config>& dp, const Sm80BackwardStorage<Config>& smem,
                                                    bool is_whole) {
    const int mine = thread();
#pragma unroll
    for (int i = 0; i < Config::kRowGroups * kFours; ++i) {
      if (i % 2 == 0)
        __syncwarp();  // keeps later loads below this point, where they would occupy registers that dk
                       // needs
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
