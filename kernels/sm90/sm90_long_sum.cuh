// Sums over very many keys (../attention/long_sum.cuh says why): o is put aside in memory every kKeysOfSum keys
// (Config::kPutsAside), and added at the end.
#pragma once

#include "../attention/long_sum.cuh"
#include "sm90_forward_args.cuh"
#include "sm90_products.cuh"

namespace attend {

// Of one consumer's rows: a float in memory for each output of each thread, those of neighbouring threads together.
template <class Config>
struct Sm90LongSum {
  static constexpr int kTiles = kKeysOfSum / Config::kBlockN;
  static constexpr int kThreads = Config::kConsumers * kWarpgroup;
  static constexpr int kOutputs = Sm90Fragments<Config>::kOutputs;
  const Sm90ForwardArgs& args;
  bool has_any = false;

  [[nodiscard]] __device__ __forceinline__ float* mine() const {
    return static_cast<float*>(args.base.workspace) + static_cast<int64>(blockIdx.x) * kOutputs * kThreads +
           (threadIdx.x - kWarpgroup);
  }

  // Before tile n's p v is added: o is complete, and the thread's own.
  __device__ __forceinline__ void move_to_memory(float (&o)[kOutputs], int n) {
    if constexpr (Config::kPutsAside) {
      if (n % kTiles != 0) return;
      float* sum = mine();
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        sum[i * kThreads] = has_any ? sum[i * kThreads] + o[i] : o[i];
        o[i] = 0.0f;
      }
      has_any = true;
    }
  }
  __device__ __forceinline__ void rescale(const float (&factor)[kRowsOfThread]) const {
    if constexpr (Config::kPutsAside) {
      if (!has_any) return;
      float* sum = mine();
#pragma unroll 8
      for (int i = 0; i < kOutputs; ++i) sum[i * kThreads] *= factor[i / 2 % 2];
    }
  }
  __device__ __forceinline__ void add_to(float (&o)[kOutputs]) const {
    if constexpr (Config::kPutsAside) {
      if (!has_any) return;
      const float* sum = mine();
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o[i] += sum[i * kThreads];
    }
  }
};

}  // namespace attend
