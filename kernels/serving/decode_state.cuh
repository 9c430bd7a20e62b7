// A state is the partial result of a tile of rows over some keys. It consists of the row maxima m, the row sums l, and
// o before division by the row sums. The computing threads of a block share one state. If kByWarpgroup is set, the
// threads of a warpgroup share one. Each thread merges its share alone, so no thread waits for another. A thread's row
// sum covers only the keys whose scores the thread holds. At the end of an item, the sums of all threads are added. The
// states of two sets of keys, a and b, are merged by:
//
//   m = max(m_a, m_b),  l = 2^(m_a - m) l_a + 2^(m_b - m) l_b,  o = 2^(m_a - m) o_a + 2^(m_b - m) o_b
//
// Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018), section 3.1.
#pragma once

#include "../common/numbers.cuh"
#include "decode_config.cuh"
#include "decode_tree.cuh"

namespace attend {

// Returns the new row maximum relative to which p is computed. `before` is the previous one, and `largest` is the
// largest new score. The result may be less than the true maximum by up to 8, so that earlier sums are seldom rescaled
// (../attention/lagging_softmax.cuh). So p is at most 2^8. With the descale factors of an 8-bit cache, the result is
// the true maximum, because p must not exceed 1. Source: FlashAttention-4 (2025).
template <class Config>
[[nodiscard]] __device__ __forceinline__ float lagging_maximum(float before, float largest) {
  constexpr float kLittle = DecodeSizes<Config>::kHasFactors ? 0.0f : 8.0f;
  return largest - before > kLittle ? largest : before;
}

template <class Config>
struct DecodeState {
  using Sizes = DecodeSizes<Config>;
  static constexpr int kFloats = decode_state_floats(Sizes::kTile);
  static constexpr int kOwned = Sizes::kOwned, kEights = Sizes::kEights;
  static constexpr bool kMergesInPieces = false;

  float value[kFloats];  // the thread's share of the state

  // Returns an element of o in the thread's column tile `tile`. The element belongs to row 2 (lane % 4) + element % 2
  // of the n-th group of eight rows.
  [[nodiscard]] __device__ __forceinline__ float& o(int tile, int n, int element) {
    return value[(tile * kEights + n) * 4 + element];
  }
  [[nodiscard]] __device__ __forceinline__ float o(int tile, int n, int element) const {
    return value[(tile * kEights + n) * 4 + element];
  }
  [[nodiscard]] __device__ __forceinline__ float row_max(int n, int row) const {
    return value[(kOwned * kEights + n) * 4 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float row_sum(int n, int row) const {
    return value[(kOwned * kEights + n) * 4 + 2 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float& row_max(int n, int row) {
    return value[(kOwned * kEights + n) * 4 + row];
  }
  [[nodiscard]] __device__ __forceinline__ float& row_sum(int n, int row) {
    return value[(kOwned * kEights + n) * 4 + 2 + row];
  }

  [[nodiscard]] static __device__ __forceinline__ DecodeState empty() {
    DecodeState state;
#pragma unroll
    for (float& x : state.value) x = 0.0f;
#pragma unroll
    for (int n = 0; n < kEights; ++n) state.row_max(n, 0) = state.row_max(n, 1) = -kInfinity;
    return state;
  }

  // Merges the state of the preceding keys into this one.
  __device__ __forceinline__ void merge(const DecodeState& before) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float top = fmaxf(before.row_max(n, row), row_max(n, row));
        const float base = exponent_base(top);
        const float of_before = exp2_fast(before.row_max(n, row) - base), own = exp2_fast(row_max(n, row) - base);
        row_max(n, row) = top;
        row_sum(n, row) = of_before * before.row_sum(n, row) + own * row_sum(n, row);
#pragma unroll
        for (int tile = 0; tile < kOwned; ++tile) {
#pragma unroll
          for (int half = 0; half < 4; half += 2) {
            o(tile, n, half + row) = of_before * before.o(tile, n, half + row) + own * o(tile, n, half + row);
          }
        }
      }
    }
  }
};

}  // namespace attend
