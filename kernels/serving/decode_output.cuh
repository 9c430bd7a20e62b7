// Ends an item: computes o and lse of its rows from the state over all their keys.
#pragma once

#include "../attention/merge_rows.cuh"
#include "decode_products_f32.cuh"
#include "decode_rows.cuh"
#include "decode_state.cuh"

namespace attend {

[[nodiscard]] __device__ __forceinline__ float sink_of(const DecodeArgs& args, int64 s, int64 head) {
  const int64 at = s * args.sinks_sequence_stride + head * args.sinks_head_stride;
  switch (args.sinks_element) {
    case StoredElement::kF16:
      return Float16::to_float(static_cast<const Bits16*>(args.sinks)[at]);
    case StoredElement::kBF16:
      return BFloat16::to_float(static_cast<const Bits16*>(args.sinks)[at]);
    case StoredElement::kF64:
      return static_cast<float>(static_cast<const double*>(args.sinks)[at]);
    default:
      return static_cast<const float*>(args.sinks)[at];
  }
}

// Data with which a warp writes a row of o. Lane r computes the OutputRow of the team's row r, and broadcasts it.
struct OutputRow {
  int64 o;       // offset of the row's first element, or -1 if there is no row
  float factor;  // factor by which the accumulated o is multiplied
  bool empty;    // the row sees no key, so o is 0, even if the accumulated sums are NaN
};

// Returns the OutputRow of a row of the tile. Also writes the row's lse, if writes_lse is set.
[[nodiscard]] __device__ __forceinline__ OutputRow output_row(const DecodeArgs& args, const DecodeSpan& span,
                                                              const DecodePiece& piece, int in_tile, bool writes_lse,
                                                              float row_max, float sum) {
  if (in_tile >= piece.num_rows) return {-1, 0.0f, true};
  const QueryRow at = QueryRow::of(args, piece, in_tile);
  float lse = sum == 0.0f ? -kInfinity : (row_max + log2f(sum)) * kLn2;
  float factor = inverse_or_zero(sum);
  if (args.sinks != nullptr && !span.dead) {
    const MergedLse with_sink = attend::merged(lse, sink_of(args, span.index, at.head));
    lse = with_sink.lse;
    factor *= with_sink.before;
  }
  const int64 q_row = span.q_begin + at.index;
  if (args.lse != nullptr && writes_lse) {
    args.lse[args.lse_stride.offset(span.batch, at.head, q_row)] = args.lse_base2 != 0 ? lse * kLog2E : lse;
  }
  return {args.o_stride.offset(span.batch, at.head, q_row), factor, sum == 0.0f};
}

// Adds up the row sums of the team's threads in a fixed order, first over the lanes of a warp and then over the warps.
// All threads of the team call it. `sums` is a buffer of the team in shared memory. The caller must put a barrier
// between two calls.
template <class Config>
__device__ __forceinline__ void add_sums(DecodeState<Config>& state, float* sums, const DecodeRole<Config>& role) {
  const auto pair_of = [&](int warp, int n) -> float2& {
    return *reinterpret_cast<float2*>(sums + warp * Config::kRows + n * 8 + role.lane % 4 * 2);
  };
#pragma unroll
  for (int n = 0; n < DecodeSizes<Config>::kEights; ++n) {
    float sum[2] = {state.row_sum(n, 0), state.row_sum(n, 1)};
#pragma unroll
    for (int distance = 4; distance < kWarpThreads; distance *= 2) {
      sum[0] += __shfl_xor_sync(kAllLanes, sum[0], distance);
      sum[1] += __shfl_xor_sync(kAllLanes, sum[1], distance);
    }
    if (role.lane < 4) pair_of(role.warp, n) = {sum[0], sum[1]};
  }
  team_barrier(role);  // waits until all warps of the team have written their sums, which may then be read
#pragma unroll
  for (int n = 0; n < DecodeSizes<Config>::kEights; ++n) {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int warp = 0; warp < kTeamWarps; ++warp) {
      const float2 of_warp = pair_of(warp, n);
      sum = {sum.x + of_warp.x, sum.y + of_warp.y};
    }
    state.row_sum(n, 0) = sum.x, state.row_sum(n, 1) = sum.y;
  }
}

// Writes o and lse from the state over all keys of an item. See add_sums() for `sums`.
template <class Config>
__device__ __forceinline__ void write_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                                           const DecodeRole<Config>& role, DecodeState<Config>& state, float* sums) {
  using Sizes = DecodeSizes<Config>;
  using Element = ElementOf<Config>;
  static_assert(Config::kRows <= kWarpThreads);
  add_sums(state, sums, role);
  float row_max = 0.0f, sum = 0.0f;  // row maximum and row sum of row `lane` of the team
#pragma unroll
  for (int n = 0; n < Sizes::kEights; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int lane_of_row = role.lane % 8 / 2;
      const float of_max = __shfl_sync(kAllLanes, state.row_max(n, row), lane_of_row);
      const float of_sum = __shfl_sync(kAllLanes, state.row_sum(n, row), lane_of_row);
      if (role.lane / 8 == n && role.lane % 2 == row) row_max = of_max, sum = of_sum;
    }
  }
  const int in_tile = role.lane < Config::kRows ? role.first_row() + role.lane : piece.num_rows;
  const OutputRow own = output_row(args, span, piece, in_tile, role.warp == 0, row_max, sum);
  const uint32 empty = __ballot_sync(kAllLanes, own.empty);
  const int first_column = role.column_tile(0) * 16;
#pragma unroll
  for (int n = 0; n < Sizes::kEights; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int in_team = n * 8 + role.lane % 4 * 2 + row;
      const int64 begin = __shfl_sync(kAllLanes, own.o, in_team);
      const float factor = __shfl_sync(kAllLanes, own.factor, in_team);
      const bool is_empty = (empty >> in_team & 1) != 0;
      if (begin < 0) continue;
      auto* o = static_cast<typename Element::Storage*>(args.o) + begin + first_column;
#pragma unroll
      for (int owned = 0; owned < Sizes::kOwned; ++owned) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int element = half * 2 + row;
          const int column = owned * kTeamWarps * 16 + DecodeProducts<Config>::column(role.lane, element);
          if (Config::kHeadDimV % (kTeamWarps * 16) != 0 && first_column + column >= Config::kHeadDimV) continue;
          // fmaf with +0 turns -0 into +0, so that the sign of zero does not depend on the keys
          o[column] = Element::round(is_empty ? 0.0f : fmaf(state.o(owned, n, element), factor, 0.0f));
        }
      }
    }
  }
}

}  // namespace attend
