// Writes dk and dv of the sm90 backward pass from registers to memory. They are either rounded or added to float sums.
#pragma once

#include "../attention/score_mods.cuh"
#include "sm90_backward_storage.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"

namespace attend {

// Stores a warp's 16 keys of dk and dv. The values are rounded, or added to floats in memory if kAddsToOutputs is set.
// `key` is the first key. Only the first num_rows keys exist.
template <class Config>
__device__ __forceinline__ void store_key_gradients(const Sm90BackwardArgs& args,
                                                    const float (&dk)[BackwardShape<Config>::kDepth / 2],
                                                    const float (&dv)[BackwardShape<Config>::kDepthV / 2],
                                                    const KeySource& keys, uint32 head_k, int64 key, int num_rows) {
  constexpr float kUnit = sm90_backward_unit(sm90_backward_units(Config::kElement).p_bits);
  const BackwardArgs& base = args.base;
  const bool overwrites = (base.overwritten & kOverwritesKeys) != 0;
  store_gradient<Config, Config::kHeadDim>(dk, base.gradient_scale, base.dk, keys.offset(base.dk_stride, head_k, key),
                                           base.dk_stride.row, num_rows, overwrites);
  store_gradient<Config, Config::kHeadDimV>(dv, kept_scale<Config>(args.options) * kUnit, base.dv,
                                            keys.offset(base.dv_stride, head_k, key), base.dv_stride.row, num_rows,
                                            overwrites);
}

// The float sums of dk and dv to which all query heads of a group add. Used if Config::kAddsUp is set. Each computing
// warpgroup has 64 keys.
template <class Config>
struct BackwardKeySums {
  using Shape = BackwardShape<Config>;
  static constexpr int kVectors = (Shape::kDepth + Shape::kDepthV) / 8;  // float4 vectors of each thread

  // Returns the address of this thread's sums for key tile `key_tile` of KV head `head`. A key tile has 64 keys. The
  // head is counted through all sequences.
  [[nodiscard]] static __device__ __forceinline__ float4* of_tile(const Sm90BackwardArgs& args, int64 head,
                                                                  int64 key_tile) {
    const int64 tile = head * args.key_blocks * Shape::kWarpgroups + key_tile;
    return reinterpret_cast<float4*>(args.key_sums) + tile * (kVectors * kWarpgroup) + threadIdx.x % kWarpgroup;
  }

  // Adds dk and dv to the sums. The order of additions from different blocks is not fixed.
  static __device__ __forceinline__ void add(const Sm90BackwardArgs& args, const Sm90BackwardItem& item, int warpgroup,
                                             const float (&dk)[Shape::kDepth / 2],
                                             const float (&dv)[Shape::kDepthV / 2]) {
    float4* to = of_tile(args, int64{item.sequence} * args.base.num_heads_k + item.head_k,
                         item.key / kWarpgroupRows + warpgroup);
#pragma unroll
    for (int i = 0; i < Shape::kDepth / 2; i += 4, to += kWarpgroup) add4(to, dk + i);
#pragma unroll
    for (int i = 0; i < Shape::kDepthV / 2; i += 4, to += kWarpgroup) add4(to, dv + i);
  }

 private:
  static __device__ __forceinline__ void add4(float4* to, const float* x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
  }
};

}  // namespace attend
