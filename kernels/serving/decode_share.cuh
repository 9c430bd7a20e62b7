// A thread's share of the nodes that blocks exchange. Usually it is the thread's state. With kHalfRows only half of the
// lanes have rows, so each of them passes its second row to a free lane, and a share is the state of one row.
#pragma once

#include "decode_state.cuh"

namespace attend {

// One of the two rows of a lane's state.
template <class Config>
struct DecodeRowState {
  static constexpr int kColumns = DecodeSizes<Config>::kOwned * 2;  // columns of o
  static constexpr int kFloats = kColumns + 2;
  static constexpr bool kMergesInPieces = false;
  static_assert(kFloats == decode_share_floats(DecodeSizes<Config>::kTile));

  float value[round_up(kFloats, 4)];  // the columns, the maximum, the sum

  [[nodiscard]] __device__ __forceinline__ float& row_max() { return value[kColumns]; }
  [[nodiscard]] __device__ __forceinline__ float& row_sum() { return value[kColumns + 1]; }

  [[nodiscard]] static __device__ __forceinline__ DecodeRowState empty() {
    DecodeRowState state;
#pragma unroll
    for (float& x : state.value) x = 0.0f;
    state.row_max() = -kInfinity;
    return state;
  }
  [[nodiscard]] static __device__ __forceinline__ DecodeRowState of(const DecodeState<Config>& both, int row) {
    DecodeRowState state = empty();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) state.value[i] = both.o(i / 2, 0, i % 2 * 2 + row);
    state.row_max() = both.row_max(0, row);
    state.row_sum() = both.row_sum(0, row);
    return state;
  }
  __device__ __forceinline__ void put_into(DecodeState<Config>& both, int row) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) both.o(i / 2, 0, i % 2 * 2 + row) = value[i];
    both.row_max(0, row) = value[kColumns];
    both.row_sum(0, row) = value[kColumns + 1];
  }

  // Merges the state of preceding keys into this one, bit-identically to DecodeState::merge().
  __device__ __forceinline__ void merge(DecodeRowState before) {
    const float top = fmaxf(before.row_max(), row_max()), base = exponent_base(top);
    const float of_before = exp2_fast(before.row_max() - base), own = exp2_fast(row_max() - base);
    row_max() = top;
    row_sum() = of_before * before.row_sum() + own * row_sum();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) value[i] = of_before * before.value[i] + own * value[i];
  }
};

template <class Config, bool kHalf = Config::kHalfRows>
struct DecodeShareFor {
  using Type = DecodeState<Config>;

  [[nodiscard]] static __device__ __forceinline__ const Type& state_of(const Type& share) { return share; }
};
template <class Config>
struct DecodeShareFor<Config, true> {
  using Type = DecodeRowState<Config>;
  // Distance to the lane that has the second row of a lane's state.
  static constexpr int kSecondRow = 2;

  // Returns the row of a lane's share. Lane 0 has the rows 0 and 1 of the state, lane 1 the rows 2 and 3.
  [[nodiscard]] static __device__ __forceinline__ int row_of(int lane) {
    const int in_four = lane % 4;
    return in_four % kSecondRow * 2 + in_four / kSecondRow;
  }
  // Returns a lane's state from its share and that of the lane with its second row. Needs full warps.
  [[nodiscard]] static __device__ __forceinline__ DecodeState<Config> state_of(const Type& share) {
    DecodeState<Config> state = DecodeState<Config>::empty();
    Type second = share;
#pragma unroll
    for (float& x : second.value) x = __shfl_xor_sync(kAllLanes, x, kSecondRow);
    share.put_into(state, 0);
    second.put_into(state, 1);
    return state;
  }
};
template <class Config>
using DecodeShareOf = typename DecodeShareFor<Config>::Type;

}  // namespace attend
