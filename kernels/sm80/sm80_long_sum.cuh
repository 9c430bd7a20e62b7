// Sums over very many keys (Config::kPutsAside). After every kKeysOfSum keys, o is added to a sum in shared memory and
// restarts at 0. The sum is relative to the row's m at that time. ../attention/long_sum.cuh explains why this is
// necessary.
#pragma once

#include "../attention/long_sum.cuh"
#include "sm80_products.cuh"

namespace attend {

// The sums of one thread. No other thread accesses them, so no barrier is needed.
template <class Config>
struct Sm80LongSum {
  static constexpr int kOutputs = Sm80Shape<Config>::kColumnsV / 2;
  static constexpr int kValues = sm80_values_aside(Sm80Shape<Config>::kColumnsV);
  static constexpr int kTiles = kKeysOfSum / Config::kBlockN;
  static constexpr int kBytes = Config::kPutsAside ? Config::kRowGroups * kValues * Config::kThreads * 4 : 0;
  using Rows = Sm80Rows<Config>[Config::kRowGroups];
  float* place;

  // Returns value i of row group r. The first values are the entries of o, and the last two are the row maxima.
  // Adjacent threads have adjacent addresses for the same i.
  [[nodiscard]] __device__ __forceinline__ float& at(int r, int i) const {
    return place[(r * kValues + i) * Config::kThreads + threadIdx.x];
  }

  // Sets the sum to 0. A sum of 0 is correct relative to any maximum.
  __device__ __forceinline__ void clear() const {
    if constexpr (Config::kPutsAside) {
#pragma unroll 4
      for (int i = 0; i < Config::kRowGroups * kValues; ++i) {
        at(0, i) = i % kValues < kOutputs ? 0.0f : -kInfinity;
      }
    }
  }

  // Adds the saved sum to o, so that o covers all keys processed so far.
  __device__ __forceinline__ void add_to(Rows& rows, float scale_log2) const {
    if constexpr (Config::kPutsAside) {
#pragma unroll
      for (int r = 0; r < Config::kRowGroups; ++r) {
        float factor[kRowsOfThread];
#pragma unroll
        for (int h = 0; h < kRowsOfThread; ++h) {
          factor[h] = exp2_fast((at(r, kOutputs + h) - exponent_base(rows[r].softmax.row_max[h])) * scale_log2);
        }
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) rows[r].o[i] = fmaf(at(r, i), factor[i / 2 % 2], rows[r].o[i]);
      }
    }
  }

  // Called after key tile n. If a group of kKeysOfSum keys ends with this tile, adds o to the saved sum and sets o to
  // 0.
  __device__ __forceinline__ void put_aside(Rows& rows, int n, float scale_log2) const {
    if constexpr (Config::kPutsAside) {
      if (n % kTiles != 0) return;
      add_to(rows, scale_log2);
#pragma unroll
      for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
          at(r, i) = rows[r].o[i];
          rows[r].o[i] = 0.0f;
        }
#pragma unroll
        for (int h = 0; h < kRowsOfThread; ++h) at(r, kOutputs + h) = rows[r].softmax.row_max[h];
      }
    }
  }
};

}  // namespace attend
