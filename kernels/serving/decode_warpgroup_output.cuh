// Ends an item, as in decode_output.cuh. Used if kByWarpgroup is set.
#pragma once

#include "decode_output.cuh"
#include "decode_warpgroup_state.cuh"

namespace attend {

// Returns the row sums over all keys. If kColumnParts is 2, adds the sums of the two warpgroups, each of which computed
// the scores of some keys. `both` is room for two floats for each row.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float2 sums_of_all(const DecodeState<Config>& state,
                                                            const DecodeRole<Config>& role, float* both) {
  const float2 own = state.sums();
  if constexpr (Config::kColumnParts == 1) return own;
  const int row = role.warp * 16 + role.lane / 4;
  compute_barrier<Config>();  // waits until all threads have finished with the data in `both`, which may then be
                              // overwritten
  if (role.lane % 4 == 0) {
    both[role.part * Config::kRows + row] = own.x;
    both[role.part * Config::kRows + row + 8] = own.y;
  }
  compute_barrier<Config>();  // waits until all sums are written; they may then be read
  return {both[row] + both[Config::kRows + row], both[row + 8] + both[Config::kRows + row + 8]};
}

// Writes o and lse. Each warp writes its 16 rows in the columns of its warpgroup.
template <class Config>
requires(Config::kByWarpgroup) __device__ __forceinline__
    void write_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                    const DecodeRole<Config>& role, DecodeState<Config>& state, float* room) {
  using Element = ElementOf<Config>;
  const float2 sums = sums_of_all(state, role, room);
  const int first_column = Config::kColumnParts == 1 ? 0 : role.part * DecodeState<Config>::kColumns;
  const int of_row = role.lane % 8 * 4, in_tile = role.warp * 16 + role.lane;
  float row_max[2], sum[2];  // maxima and sums of rows lane % 8 and lane % 8 + 8 of the warp
  row_max[0] = __shfl_sync(kAllLanes, state.row_max(0), of_row);
  row_max[1] = __shfl_sync(kAllLanes, state.row_max(1), of_row);
  sum[0] = __shfl_sync(kAllLanes, sums.x, of_row);
  sum[1] = __shfl_sync(kAllLanes, sums.y, of_row);
  const bool is_second = role.lane >= 8;
  const OutputRow own = output_row(args, span, piece, role.lane < 16 ? in_tile : piece.num_rows,
                                   Config::kColumnParts == 1 || role.part == 0, is_second ? row_max[1] : row_max[0],
                                   is_second ? sum[1] : sum[0]);
  const uint32 empty = __ballot_sync(kAllLanes, own.empty);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int in_warp = role.lane / 4 + row * 8;
    const int64 begin = __shfl_sync(kAllLanes, own.o, in_warp);
    const float factor = __shfl_sync(kAllLanes, own.factor, in_warp);
    const bool is_empty = (empty >> in_warp & 1) != 0;
    if (begin < 0) continue;
    auto* o = static_cast<typename Element::Storage*>(args.o) + begin;
#pragma unroll
    for (int i = 0; i < DecodeState<Config>::kOfO; ++i) {
      const int column = first_column + i / 4 * 8 + role.lane % 4 * 2 + i % 2;
      if (i % 4 / 2 != row || column >= Config::kHeadDimV) continue;
      // fmaf with +0 turns -0 into +0, so that the sign of zero does not depend on the keys
      o[column] = Element::round(is_empty ? 0.0f : fmaf(state.o(i), factor, 0.0f));
    }
  }
}

}  // namespace attend
