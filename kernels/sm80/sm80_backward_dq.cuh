// dq in the same pass as dk and dv (Config::kAddsDq): ds of all warps meets in shared memory, and what its product with
// the block's keys gives is added to float sums in memory, in no fixed order. sm80_backward_finish makes dq of them.
//
//   dq += ds k
#pragma once

#include "sm80_backward_products.cuh"

namespace attend {

// to += value, of neighbours: in the L2 cache, and nobody waits for it. PTX ISA, parallel synchronization: red; two at
// once from sm_90 on. volatile: memory is changed.
__device__ __forceinline__ void add_pair_in_memory(float* to, float first, float second) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
#else
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(first) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(second) : "memory");
#endif
}

// The sums of one head of one sequence, from `row` on: rows of sm80_depth() floats.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float* sm80_dq_sums(const BackwardOptionArgs& args, const SequenceSpan& span,
                                                             uint32 head, int64 row) {
  const int64 head_rows = (int64{span.batch} * args.base.num_heads_q + head) * args.total_rows;
  return args.dq_sums + (head_rows + span.q_begin + row) * sm80_depth(Config::kHeadDim);
}

// A warp's ds of kStep rows from `first` of the tile on, rounded; or zeros, where none of them meets what it owns.
template <class Config>
__device__ __forceinline__ void sm80_store_ds(Sm80BackwardStorage<Config>& smem,
                                              const OperandA (&ds)[Config::kRowGroups][Config::kStep / kMmaDepth],
                                              int first) {
  using Tile = typename Sm80BackwardStorage<Config>::DsTile;
  const int lane = recomputed_thread() % 32;
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < Config::kStep / kMmaDepth * 4; ++i) {
      const int key = sm80_first_owned<Config>(r) + lane / 4 + i % 2 * kRowHalf;
      uint4& chunk = smem.ds.tile.chunk[Tile::index(key, first / kChunkElements + i / 2)];
      reinterpret_cast<uint32*>(&chunk)[lane % 4] = ds[r][i / 4].reg[i % 4];
    }
  }
}

// dq of the tile of rows that begins with `tile_row` of the sequence, from all keys of the block. A warp has 32 of its
// 64 rows and a part of the columns. ds is there.
template <class Config>
__device__ __forceinline__ void sm80_add_dq(const Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                            int tile_row) {
  using Shape = Sm80BackwardShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  constexpr int kGroups = 2;  // of 16 rows
  constexpr int kParts = Config::kWarps / (Config::kStreamed / (kGroups * kMmaRows));
  constexpr int kColumns = round_up(ceil_div(Shape::kDepth, kParts), 2 * kMmaColumns);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp / kParts * kGroups * kMmaRows;
  const int first_column = warp % kParts * kColumns;
  if (first_column >= Shape::kDepth) return;
  float dq[kGroups][kColumns / 2] = {};
  const auto a = BlockReader<typename Storage::DsTile>::by_columns(smem.ds.tile, recomputed_thread() % 32);
  const auto b = BlockReader<typename Storage::OwnedTile>::by_rows(smem.owned, recomputed_thread() % 32);
#pragma unroll 4
  for (int key = 0; key < Shape::kOwned; key += kMmaDepth) {
    OperandA x[kGroups];
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {  // transposed: the tile's rows are keys
      const OperandBPair ds = a.b(key, first_row + r * kMmaRows);
      x[r] = {{ds.half[0].reg[0], ds.half[0].reg[1], ds.half[1].reg[0], ds.half[1].reg[1]}};
    }
#pragma unroll
    for (int column = 0; column < kColumns; column += 2 * kMmaColumns) {
      const OperandBPair k = b.b(key, first_column + column);
#pragma unroll
      for (int i = 0; i < 2 * kGroups; ++i) {
        mma_add<ElementOf<Config>>(dq[i / 2] + column / 2 + i % 2 * kAccumulatorsOfMma, x[i / 2], k.half[i % 2]);
      }
    }
  }
  const int lane = recomputed_thread() % 32;
  const int64 row = int64{tile_row} + first_row + accumulator_row(lane);
  float* to =
      sm80_dq_sums<Config>(args, smem.block.span, smem.block.head, row) + first_column + accumulator_column(lane);
#pragma unroll
  for (int r = 0; r < kGroups * kRowsOfThread; ++r) {
    const int below = r / kRowsOfThread * kMmaRows + r % kRowsOfThread * kRowHalf;
    if (row + below >= smem.block.span.seqlen_q) break;
#pragma unroll
    for (int column = 0; column < kColumns; column += kColumnsOfTile) {
      if (kColumns * kParts != Shape::kDepth && first_column + column >= Shape::kDepth) continue;
      const float* sum = dq[r / kRowsOfThread] + column / 2 + r % kRowsOfThread * 2;
      add_pair_in_memory(to + below * Shape::kDepth + column, sum[0], sum[1]);
    }
  }
}

}  // namespace attend
