// A thread's share of the nodes that blocks exchange. Usually this is the thread's share of the state. If kHalfRows is
// set, only half of the lanes have rows. Each of these lanes passes its second row to a free lane, so a share is the
// state of one row.
#pragma once

#include "decode_state.cuh"

namespace attend {

// State of one of the two rows of a lane.
template <class Config>
struct DecodeRowState {
  static constexpr int kColumns = DecodeSizes<Config>::kOwned * 2;  // number of columns of o in a lane
  static constexpr int kFloats = kColumns + 2;
  static constexpr bool kMergesInPieces = false;
  static_assert(kFloats == decode_share_floats(DecodeSizes<Config>::kTile));

  float value[round_up(kFloats, 4)];  // the columns of o, then the row maximum, then the row sum

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

  // Merges the state of the preceding keys into this one. The result is bit-identical to DecodeState::merge().
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
  // Distance between a lane and the lane that holds its second row.
  static constexpr int kSecondRow = 2;

  // Returns the row of a lane's share. For example, the state of lane 0 has the rows 0 and 1, and the state of lane 1
  // the rows 2 and 3.
  [[nodiscard]] static __device__ __forceinline__ int row_of(int lane) {
    const int in_four = lane % 4;
    return in_four % kSecondRow * 2 + in_four / kSecondRow;
  }
  // Combines a lane's share with the share of the lane that has its second row, and returns the lane's state. All lanes
  // of a warp must call it.
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
