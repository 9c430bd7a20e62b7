// Converts products of q and k to scores.
#pragma once

#include "../attention/score_transform.cuh"
#include "decode_args.cuh"

namespace attend {

// Factors by which products are multiplied.
struct DecodeScale {
  float log2;    // scale log2(e), used without a transform
  float in_cap;  // scale / cap, used with a transform
  float of_cap;  // cap log2(e), or 0 without a transform

  [[nodiscard]] static __device__ __forceinline__ DecodeScale of(const DecodeArgs& args) {
    if (args.transform_cap == 0.0f) return {args.scale * kLog2E, 0.0f, 0.0f};
    const float in_cap = fmaxf(-kLargestFloat, fminf(kLargestFloat, args.scale / args.transform_cap));
    return {0.0f, in_cap, args.transform_cap * kLog2E};
  }
  // Turns products into scores, in base 2: the scores are multiplied by log2(e).
  template <class Config, int kEights>
  __device__ __forceinline__ void apply(float (&s)[kEights][4]) const {
    if (of_cap == 0.0f) {
#pragma unroll
      for (int i = 0; i < kEights * 4; ++i) s[i / 4][i % 4] *= log2;
      return;
    }
#pragma unroll
    for (int i = 0; i < kEights * 4; ++i) {
      const float x = s[i / 4][i % 4] * in_cap;
      s[i / 4][i % 4] = of_cap * (Config::kElement == ElementType::kF32 ? tanhf(x) : tanh_fast(x));
    }
  }
};

}  // namespace attend
