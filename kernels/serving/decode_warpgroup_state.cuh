// A thread's share of a state in the accumulator layout of wgmma, for a tile of 64 query rows. Used if kByWarpgroup is
// set. The thread has the rows 16 warp + lane / 4 and 16 warp + lane / 4 + 8, and the columns 2 (lane % 4) and 2 (lane
// % 4) + 1 of each group of eight columns.
//
// A row sum is stored as the same partial sums as in decode_state.cuh. They are added in the same order at the end, so
// results are bit-identical. The partial sum with indices w and g covers the keys 16 w + g and 16 w + 8 + g of all
// steps. The thread holds the sums with g = 2 (lane % 4) + e, for e = 0 and 1.
//
// If kColumnParts is 2, two warpgroups share a state. Each has half of the columns of o. Each thread has one sum for
// each row, which covers keys whose scores its warpgroup computed.
#pragma once

#include "decode_state.cuh"

namespace attend {

template <class Config>
requires(Config::kByWarpgroup) struct DecodeState<Config> {
  using Sizes = DecodeSizes<Config>;
  static constexpr int kColumns = decode_warpgroup_columns(Sizes::kTile);
  static constexpr int kOfO = kColumns / 2, kSums = decode_warpgroup_sums(Sizes::kTile);  // kOfO floats of o, and kSums
                                                                                          // partial sums of each row
  static constexpr int kFloats = decode_state_floats(Sizes::kTile);
  static_assert(kFloats == kOfO + 2 + 2 * kSums);

  // Offset of o. The maxima and sums of the two rows precede o, because a merge reads the maxima first.
  static constexpr int kFirstOfO = 2 + 2 * kSums;
  static constexpr bool kMergesInPieces = true;  // A merge reads the other state from memory in pieces of four floats,
                                                 // because the registers cannot hold two states
  float value[round_up(kFloats, 4)];

  // Element i of the accumulators. The element belongs to the thread's row i % 4 / 2.
  [[nodiscard]] __device__ __forceinline__ float& o(int i) { return value[kFirstOfO + i]; }
  [[nodiscard]] __device__ __forceinline__ float o(int i) const { return value[kFirstOfO + i]; }
  [[nodiscard]] __device__ __forceinline__ float& row_max(int row) { return value[row]; }
  [[nodiscard]] __device__ __forceinline__ float row_max(int row) const { return value[row]; }
  // Partial sum i = 2 w + e of a row. The comment at the top of this file defines w and e.
  [[nodiscard]] __device__ __forceinline__ float& row_sum(int row, int i) { return value[2 + row * kSums + i]; }
  [[nodiscard]] __device__ __forceinline__ float row_sum(int row, int i) const { return value[2 + row * kSums + i]; }

  [[nodiscard]] static __device__ __forceinline__ DecodeState empty() {
    DecodeState state;
#pragma unroll
    for (float& x : state.value) x = 0.0f;
    state.row_max(0) = state.row_max(1) = -kInfinity;
    return state;
  }

  // Merges the state of the preceding keys into this one. before(i) returns the floats 4 i to 4 i + 3 of that state.
  template <class Before>
  __device__ __forceinline__ void merge_pieces(const Before& before) {
    float of_before[2], own[2];
    // kAtOnce is the number of loads in flight.
    constexpr int kVectors = ceil_div(kFloats, 4), kAtOnce = Config::kColumnParts > 1 ? 8 : 1;
    float4 read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i % kAtOnce == 0) {
#pragma unroll
        for (int n = 0; n < kAtOnce && i + n < kVectors; ++n) read[n] = before(i + n);
      }
      const float4 x = read[i % kAtOnce];
      const float piece[4] = {x.x, x.y, x.z, x.w};
      if (i == 0) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float top = fmaxf(piece[row], row_max(row)), base = exponent_base(top);
          of_before[row] = exp2_fast(piece[row] - base);
          own[row] = exp2_fast(row_max(row) - base);
          row_max(row) = top;
        }
      }
#pragma unroll
      for (int at = 4 * i; at < 4 * i + 4; ++at) {
        if (at < 2 || at >= kFloats) continue;
        const int row = at < kFirstOfO ? (at - 2) / kSums : (at - kFirstOfO) % 4 / 2;
        value[at] = of_before[row] * piece[at % 4] + own[row] * value[at];
      }
    }
  }

  // Returns the sum of p of each row over all keys whose scores the warpgroup computed.
  [[nodiscard]] __device__ __forceinline__ float2 sums() const {
    float all[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      all[row] = 0.0f;
#pragma unroll
      for (int w = 0; w < ceil_div(kSums, 2); ++w) {
        float sum = row_sum(row, 2 * w);
        if constexpr (kSums > 1) sum += row_sum(row, 2 * w + 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        all[row] += sum;
      }
    }
    return {all[0], all[1]};
  }
};

}  // namespace attend
