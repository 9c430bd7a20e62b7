// Warpgroup 2 of sm90_backward_wide_keys.cuh. It computes ds from dp, and from the p that warpgroup 1 passes to it.
#pragma once

#include "sm90_backward_scores.cuh"
#include "sm90_backward_wide_scores.cuh"
#include "sm90_backward_wide_storage.cuh"

namespace attend {

// The PairMaker of WideKeysWarpgroup that turns dp = v dout^T into ds, for dk += ds q.
template <class Config>
class WideDs {
 public:
  using Shape = BackwardShape<Config>;
  using Element = ElementOf<Config>;
  using Storage = Sm90BackwardWideKeysStorage<Config>;
  static constexpr int kHeadDim = Config::kHeadDimV;         // columns of v and dout without padding
  static constexpr int kKeysDepth = Shape::kDepthV;          // columns of v in shared memory, with padding
  static constexpr int kGradientHeadDim = Config::kHeadDim;  // columns of dk without padding
  static constexpr int kGradientDepth = Shape::kDepth;

  __device__ __forceinline__ WideDs(Storage& smem, const Sm90BackwardArgs& args) : smem_(smem), args_(args) {}

  [[nodiscard]] __device__ __forceinline__ const Bits16* keys() const { return smem_.v; }
  [[nodiscard]] __device__ __forceinline__ Mbarrier& keys_full() const { return smem_.v_full; }
  [[nodiscard]] __device__ __forceinline__ auto score_tiles() const { return smem_.dout_ring(); }
  [[nodiscard]] __device__ __forceinline__ auto gradient_tiles() const { return smem_.q_ring(); }

  [[nodiscard]] __device__ __forceinline__ WideGradient gradient() const {
    return {args_.base.dk, args_.base.dk_stride, args_.base.gradient_scale};
  }

  // Reads delta of the tile's query rows. The tile must have arrived.
  __device__ __forceinline__ void read_rows(uint32 number) {
    read_row_statistics(delta_, smem_.delta[stage_of<Config::kStages>(number)]);
#pragma unroll
    for (float& x : delta_) x *= kScoreGradientUnit<Config>;
  }

  // Computes ds of the tile. The product dp must be complete.
  __device__ __forceinline__ void make_pairs(uint32 number, const float (&dp)[32], uint32 (&ds)[16]) {
    const uint32 buffer = stage_of<kBackwardWideHandovers>(number);
    smem_.p_full[buffer].wait(parity_of<kBackwardWideHandovers>(number));  // wait until p of the tile may be read
    if constexpr (Score<Config>::kDrops) kept_ = smem_.kept.words[buffer][threadIdx.x % kWarpgroup];
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 p = smem_.p[buffer][i / 4][threadIdx.x % kWarpgroup];
      ds[i / 2] = Element::pack(score_gradient(p.x, dp, i), score_gradient(p.y, dp, i + 1));
      ds[i / 2 + 1] = Element::pack(score_gradient(p.z, dp, i + 2), score_gradient(p.w, dp, i + 3));
    }
    __syncwarp();
    arrive_as_warp(smem_.p_empty[buffer]);
  }

 private:
  // Returns entry i of ds. For a dropped entry dp counts as 0.
  [[nodiscard]] __device__ __forceinline__ float score_gradient(float p, const float (&dp)[32], int i) const {
    const float kept = Score<Config>::kDrops && (kept_ >> i & 1u) == 0 ? 0.0f : dp[i];
    return wide_score_gradient<Config>(p, kept, delta_[backward_statistic(i)]);
  }

  Storage& smem_;
  const Sm90BackwardArgs& args_;
  float delta_[16];
  uint32 kept_ = 0;  // one bit for each entry of the tile, set if dropout keeps the entry
};

}  // namespace attend
