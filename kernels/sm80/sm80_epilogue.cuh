// Writes o / l and lse of a warp's query rows from registers to memory.
#pragma once

#include "../attention/row_end.cuh"
#include "../tiles/output_tile.cuh"
#include "sm80_pieces.cuh"
#include "sm80_products.cuh"

namespace attend {

template <class Config>
__device__ __forceinline__ void sm80_store_lse(const ForwardArgs& args, const Sm80Block<Config>& block, int64 row,
                                               const typename Sm80Rows<Config>::Softmax& softmax, float scale,
                                               const RowEnd<Config>& end) {
  const int lane = threadIdx.x % 32;
  if (args.lse == nullptr || block.work.part != 0 || threadIdx.x / 32 % Config::kSplits != 0 ||
      accumulator_column(lane) != 0)
    return;
#pragma unroll
  for (int h = 0; h < kRowsOfThread; ++h) {
    const int64 mine = row + accumulator_row(lane) + h * kRowHalf;
    if (mine >= block.span.seqlen_q) continue;
    args.lse[block.span.query_offset(args.lse_stride, block.work.head, mine)] = end.lse(softmax.lse(h, scale));
  }
}

// Stores o and lse of the rows that exist. The argument `scale` is score_scale(), which turns the softmax's values into
// scores.
template <class Config>
__device__ __forceinline__ void sm80_store_rows(const ForwardOptionArgs& args, Sm80Storage<Config>& smem,
                                                Sm80Rows<Config> (&rows)[Config::kRowGroups], float scale) {
  const Sm80Block<Config>& block = smem.block;
  const ForwardArgs& base = args.base;
  const auto end = RowEnd<Config>::of(args.options, block.work.sequence, block.work.head);
  constexpr int kColumns = Sm80Shape<Config>::kColumnsOfWarp;
  using OTile = PanelTile<Config::kBlockM, Config::kSplits == 1 ? Sm80Storage<Config>::kWidthQ : kColumns>;
  const int part = static_cast<int>(threadIdx.x) / 32 % Config::kSplits;
  auto& o_tile = reinterpret_cast<OTile*>(&smem.q_or_o)[part];
  const int first_column = block.work.first_column_v() + part * kColumns;
  const int columns = min(kColumns, Config::kHeadDimV - first_column);
  __syncwarp();  // waits until all lanes have read the warp's rows of q, because o overwrites them
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
    auto& softmax = rows[r].softmax;
    if constexpr (Config::kSplits == 1)
      softmax.finish();  // if kSplits > 1, the warps that share rows have already summed l
    const int tile_row = sm80_first_row<Config>(r);
    const int64 row = block.work.row + tile_row;
    sm80_store_lse(base, block, row, softmax, scale, end);
    const float factor[kRowsOfThread] = {end.factor(softmax.inverse_sum(0), softmax.lse(0, scale)),
                                         end.factor(softmax.inverse_sum(1), softmax.lse(1, scale))};
    write_accumulators<ElementOf<Config>>(o_tile, tile_row, rows[r].o, factor);
    __syncwarp();  // waits until the 16 rows of o are written, which no other warp accesses
    auto* o =
        static_cast<Bits16*>(base.o) + block.span.query_offset(base.o_stride, block.work.head, row) + first_column;
    store_pieces<Config>(o_tile, tile_row, o, base.o_stride.row, block.span.seqlen_q - row, columns);
  }
}

}  // namespace attend
