// The end of an item: o and lse of its rows from the state over all their keys.
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

template <class Config>
__device__ __forceinline__ void write_rows(const DecodeArgs& args, const DecodeSpan& span, const DecodePiece& piece,
                                           const DecodeRole<Config>& role, DecodeState<Config>& state) {
  using Sizes = DecodeSizes<Config>;
  using Element = ElementOf<Config>;
#pragma unroll
  for (int n = 0; n < Sizes::kEights; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int in_tile = role.first_row() + n * 8 + role.lane % 4 * 2 + row;
      if (in_tile >= piece.num_rows) continue;
      const QueryRow at = QueryRow::of(args, piece, in_tile);
      const float sum = state.row_sum(n, row);
      float lse = sum == 0.0f ? -kInfinity : (state.row_max(n, row) + log2f(sum)) * kLn2;
      float factor = inverse_or_zero(sum);
      if (args.sinks != nullptr && !span.dead) {
        const MergedLse with_sink = attend::merged(lse, sink_of(args, span.index, at.head));
        lse = with_sink.lse;
        factor *= with_sink.before;
      }
      const int64 q_row = span.q_begin + at.index;
      auto* o = static_cast<typename Element::Storage*>(args.o) + args.o_stride.offset(span.batch, at.head, q_row);
#pragma unroll
      for (int owned = 0; owned < Sizes::kOwned; ++owned) {
        const int tile = owned * kDecodeStripes + role.stripe;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int element = half * 2 + row;
          const int column =
              (role.first_column_tile() + tile) * 16 + DecodeProducts<Config>::column(role.lane, element);
          if (tile >= Sizes::kColumnTiles || column >= Config::kHeadDimV) continue;
          // A row that sees no key has o = 0 even if its sums are NaN. -0 becomes 0, whatever keys gave it
          o[column] = Element::round(sum == 0.0f ? 0.0f : fmaf(state.o(owned, n, element), factor, 0.0f));
        }
      }
      const bool writes_lse =
          args.lse != nullptr && role.stripe == 0 && role.lane < 4 && (Config::kColumnParts == 1 || role.part == 0);
      if (writes_lse) {
        args.lse[args.lse_stride.offset(span.batch, at.head, q_row)] = args.lse_base2 != 0 ? lse * kLog2E : lse;
      }
    }
  }
}

}  // namespace attend
