// kByWarpgroup: the end of an item, as decode_output.cuh.
#pragma once

#include "decode_output.cuh"
#include "decode_warpgroup_state.cuh"

namespace attend {

// Each warp has the rows of its 16.
template <class Config>
requires(Config::kByWarpgroup) __device__ __forceinline__
    void write_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                    const DecodeRole<Config>& role, DecodeState<Config>& state, float*) {
  using Element = ElementOf<Config>;
  const float2 sums = state.sums();
  const int of_row = role.lane % 8 * 4, in_tile = role.warp * 16 + role.lane;
  float row_max[2], sum[2];  // of rows lane % 8 and that + 8 of the warp
  row_max[0] = __shfl_sync(kAllLanes, state.row_max(0), of_row);
  row_max[1] = __shfl_sync(kAllLanes, state.row_max(1), of_row);
  sum[0] = __shfl_sync(kAllLanes, sums.x, of_row);
  sum[1] = __shfl_sync(kAllLanes, sums.y, of_row);
  const bool is_second = role.lane >= 8;
  const OutputRow own = output_row(args, span, piece, role.lane < 16 ? in_tile : piece.num_rows, true,
                                   is_second ? row_max[1] : row_max[0], is_second ? sum[1] : sum[0]);
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
      const int column = i / 4 * 8 + role.lane % 4 * 2 + i % 2;
      if (i % 4 / 2 != row || column >= Config::kHeadDimV) continue;
      // -0 becomes 0, whatever keys gave it
      o[column] = Element::round(is_empty ? 0.0f : fmaf(state.o(i), factor, 0.0f));
    }
  }
}

}  // namespace attend
