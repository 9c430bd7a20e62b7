// Computes dq in the same pass as dk and dv (Config::kAddsDq). All warps store ds to shared memory. The product of ds
// and the block's keys is then added to float sums in global memory, in no fixed order. sm80_backward_finish rounds the
// sums to dq.
//
//   dq += ds k
//
// The sums are stored in the order of accumulators, as tiles of 16 x 8 with the shape (groups of 16 rows, kDepth / 8,
// 128). So one instruction of a warp adds to adjacent addresses.
#pragma once

#include "../isa/stmatrix.cuh"
#include "sm80_backward_products.cuh"

namespace attend {

constexpr int kSm80SumsOfTile = kMmaRows * kMmaColumns;

// Returns the position of accumulator i of a lane in its tile. From sm_90 on, a lane adds four adjacent values with one
// instruction. On older GPUs, accumulator i of all lanes is adjacent.
[[nodiscard]] __device__ __forceinline__ constexpr int sm80_sum_at(int lane, int i) {
#if __CUDA_ARCH__ >= 900
  return lane * kAccumulatorsOfMma + i;
#else
  return i * 32 + lane;
#endif
}

// Adds a lane's accumulators of a tile to the sums in memory. The L2 cache performs the addition, and no thread waits
// for it. The instruction is red (PTX ISA, parallel synchronization), with vectors from sm_90 on. The asm statement is
// volatile because it changes memory.
__device__ __forceinline__ void sm80_add_to_sums(float* tile, const float* value, int lane) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(tile + sm80_sum_at(lane, 0)),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < kAccumulatorsOfMma; ++i) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(tile + sm80_sum_at(lane, i)), "f"(value[i])
                 : "memory");
  }
#endif
}

// Returns the address of the dq sums of one head of one sequence. `row` is the first row of a group of 16, as an index
// in the sequence.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float* sm80_dq_sums(const BackwardOptionArgs& args, const SequenceSpan& span,
                                                             uint32 sequence, uint32 head, int64 row) {
  const int64 first = Config::kIsVarlen ? sm80_first_dq_row(span.q_begin, sequence) : 0;
  return args.dq_sums + ((int64{span.batch} * args.base.num_heads_q + head) * args.dq_rows + first + row) *
                            sm80_depth(Config::kHeadDim);
}

// Stores a rounded 16 x 16 block of ds or p, in the layout that BlockReader::by_rows reads.
template <class Tile>
__device__ __forceinline__ void sm80_store_block(Tile& tile, int row, int column, const OperandA& block) {
  const int lane = recomputed_thread() % 32;
#if __CUDA_ARCH__ >= 900
  const uint32 address = smem_address(tile.chunk) + Tile::index(lane % 16, lane / 16) * kChunkBytes;
  stmatrix_x4(Tile::moved(address, row, column / kChunkElements), block.reg);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4& chunk = tile.chunk[Tile::index(row + lane / 4 + i % 2 * kRowHalf, column / kChunkElements + i / 2)];
    reinterpret_cast<uint32*>(&chunk)[lane % 4] = block.reg[i];
  }
#endif
}

// Stores the blocks of ds or p that a warp computed for 16 * kBlocks streamed rows. `first` is the index of the first
// row in the streamed tile.
template <class Config, int kBlocks>
__device__ __forceinline__ void sm80_store_blocks(typename Sm80BackwardStorage<Config>::ScoreTile& tile,
                                                  const OperandA (&x)[Config::kRowGroups][kBlocks], int first) {
#pragma unroll
  for (int r = 0; r < Config::kRowGroups; ++r) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      sm80_store_block(tile, sm80_first_owned<Config>(r), first + i * kMmaDepth, x[r][i]);
    }
  }
}

// Adds the contribution of all keys of the block to dq, for one tile of query rows. tile_row is the tile's first row,
// as an index in the sequence. Each warp handles 32 of these rows and a part of the columns. ds must have been written
// to shared memory.
template <class Config, class Tile>
__device__ __forceinline__ void sm80_add_dq(const Tile& ds_tile, const Sm80BackwardStorage<Config>& smem,
                                            const BackwardOptionArgs& args, int tile_row) {
  using Shape = Sm80BackwardShape<Config>;
  using Storage = Sm80BackwardStorage<Config>;
  constexpr int kGroups = 2;  // groups of 16 query rows
  constexpr int kParts = Config::kWarps / (Config::kStreamed / (kGroups * kMmaRows));
  constexpr int kColumns = round_up(ceil_div(Shape::kDepth, kParts), 2 * kMmaColumns);
  constexpr int kTogether = kColumns < 64 ? 4 : 2;  // number of loop iterations whose loads are in flight at the same
                                                    // time
  const int warp = recomputed_thread() / 32;
  const int first_row = warp / kParts * kGroups * kMmaRows;
  const int first_column = warp % kParts * kColumns;
  if (first_column >= Shape::kDepth) return;
  float dq[kGroups][kColumns / 2] = {};
  const auto a = BlockReader<Tile>::by_columns(ds_tile, recomputed_thread() % 32);
  const auto b = BlockReader<typename Storage::OwnedTile>::by_rows(smem.owned, recomputed_thread() % 32);
#pragma unroll kTogether
  for (int key = 0; key < Shape::kOwned; key += kMmaDepth) {
    OperandA x[kGroups];
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {  // transposed, because the rows of the ds tile are keys
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
  const auto& block = smem.block;
  const int lane = recomputed_thread() % 32;
  float* sums = sm80_dq_sums<Config>(args, block.span, block.work.sequence, block.head, int64{tile_row} + first_row) +
                first_column / kMmaColumns * kSm80SumsOfTile;
#pragma unroll
  for (int r = 0; r < kGroups; ++r) {
    if (int64{tile_row} + first_row + r * kMmaRows >= block.span.seqlen_q) break;
#pragma unroll
    for (int column = 0; column < kColumns; column += kMmaColumns) {
      if (kColumns * kParts != Shape::kDepth && first_column + column >= Shape::kDepth) continue;
      sm80_add_to_sums(sums + r * kMmaRows * Shape::kDepth + column / kMmaColumns * kSm80SumsOfTile, dq[r] + column / 2,
                       lane);
    }
  }
}

}  // namespace attend
