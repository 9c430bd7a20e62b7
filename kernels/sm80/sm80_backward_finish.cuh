// Last step of sm80_backward, after a pass that added to dq. It computes dq = scale * (its float sums) and rounds it.
#pragma once

#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

// Stores eight adjacent elements of a row, of which the first `columns` exist.
template <class Config>
__device__ __forceinline__ void sm80_store_rounded(typename ElementOf<Config>::Storage* to, const float (&value)[8],
                                                   int columns) {
  using Element = ElementOf<Config>;
  static_assert(kFitsTiles<Config>, "eight elements are 16 bytes");
  if constexpr (Config::kAligned) {
    *reinterpret_cast<uint4*>(to) = make_uint4(Element::pack(value[0], value[1]), Element::pack(value[2], value[3]),
                                               Element::pack(value[4], value[5]), Element::pack(value[6], value[7]));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < columns) to[i] = Element::round(value[i]);
    }
  }
}

// Grid: one block for each tile of kBlockM rows of each query head of each sequence. A thread processes rows r and r +
// 8 of one 16 x 8 tile of accumulators. These are the accumulators of four lanes, which are adjacent in memory.
template <class Config>
__device__ void sm80_backward_finish(const BackwardOptionArgs& args) {
  constexpr int kTiles = ceil_div(Config::kHeadDim, kMmaColumns);  // tiles of 8 columns
  constexpr int kLanes = 4;                                        // lanes that share a row
  const BackwardArgs& base = args.base;
  const float factor =
      base.gradient_scale * (Config::kIsUnmodified && kSm80ShiftsDs<ElementOf<Config>> ? kSm80Unshift<Config> : 1.0f);
  const auto row_tiles = static_cast<uint32>(num_tiles(base.seqlen_q, Config::kBlockM));
  const auto [sequence, head, tile] = HeadTile::of_block(blockIdx.x, row_tiles, base.num_heads_q);
  const SequenceSpan span = sequence_span<Config>(base, args.options, sequence);
  const int64 first = tile * Config::kBlockM;
  const int rows = static_cast<int>(max(min(span.seqlen_q - first, int64{Config::kBlockM}), int64{0}));
  const float* sums = sm80_dq_sums<Config>(args, span, sequence, head, first);
  auto* dq =
      static_cast<typename ElementOf<Config>::Storage*>(base.dq) + span.query_offset(base.dq_stride, head, first);
#pragma unroll 2
  for (int i = threadIdx.x; i < num_tiles(rows, kMmaRows) * kRowHalf * kTiles; i += Config::kThreads) {
    const int column = i % kTiles * kMmaColumns;
    const int row = i / kTiles / kRowHalf * kMmaRows + i / kTiles % kRowHalf;
    const float* from =
        sums + row / kMmaRows * kMmaRows * sm80_depth(Config::kHeadDim) + column / kMmaColumns * kSm80SumsOfTile;
    float value[kRowsOfThread][kMmaColumns];
#pragma unroll
    for (int j = 0; j < kLanes * kAccumulatorsOfMma; j += 4) {
      // Four adjacent sums belong either to one lane or to four lanes, depending on sm80_sum_at().
      const int lane = row % kRowHalf * kLanes;
      const bool of_lane = sm80_sum_at(0, 1) == 1;
      const float4 four = __ldcs(
          reinterpret_cast<const float4*>(from + (of_lane ? sm80_sum_at(lane + j / 4, 0) : sm80_sum_at(lane, j / 4))));
      const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int accumulator = of_lane ? e : j / 4;
        value[accumulator / 2][(of_lane ? j / 4 : e) * 2 + accumulator % 2] = each[e] * factor;
      }
    }
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      if (row + h * kRowHalf >= rows) break;
      sm80_store_rounded<Config>(dq + (row + h * kRowHalf) * base.dq_stride.row + column, value[h],
                                 Config::kHeadDim - column);
    }
  }
}

}  // namespace attend
