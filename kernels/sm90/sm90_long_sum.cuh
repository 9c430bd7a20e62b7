// Sums over very many keys (Config::kPutsAside). After every kKeysOfSum keys, o is added to a sum in memory and
// restarts at 0. After the last key, the sum is added to o. ../attention/long_sum.cuh explains why this is necessary.
#pragma once

#include "../attention/long_sum.cuh"
#include "../tiles/accumulator_mask.cuh"
#include "sm90_forward_args.cuh"
#include "sm90_products.cuh"

namespace attend {

// The sum for one consumer's rows. Memory holds one float for each output of each thread. Adjacent threads use adjacent
// floats.
template <class Config>
struct Sm90LongSum {
  static constexpr int kTiles = kKeysOfSum / Config::kBlockN;
  static constexpr int kThreads = Config::kConsumers * kWarpgroup;
  static constexpr int kOutputs = Sm90Fragments<Config>::kOutputs;
  const Sm90ForwardArgs& args;
  int seqlen_k;
  bool has_any = false;

  [[nodiscard]] __device__ __forceinline__ float* mine() const {
    return static_cast<float*>(args.base.workspace) + static_cast<int64>(blockIdx.x) * kOutputs * kThreads +
           (threadIdx.x - kWarpgroup);
  }

  // Adds o to the sum in memory and clears o, if tile n starts a new group of kKeysOfSum keys. Called before p v of
  // tile n is added, when no running product writes o.
  __device__ __forceinline__ void move_to_memory(float (&o)[kOutputs], int n) {
    if constexpr (Config::kPutsAside) {
      if (n % kTiles != 0) return;
      // The result of a sequence must have the same bits regardless of the number of keys of other sequences. So the
      // decision depends on the length of this sequence only.
      if (Config::kIsCached && !puts_sums_aside(Config::kElement, seqlen_k)) return;
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
