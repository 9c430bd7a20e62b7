// Parts of sm80_backward_unmodified that both roles share: barriers, the change of tiles, tiles of rounded scores, and
// the stores of gradients.
#pragma once

#include "../isa/named_barrier.cuh"
#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

template <class Config>
struct Sm80UnmodifiedShape : Sm80BackwardShape<Config> {
  using Shape = Sm80BackwardShape<Config>;
  static constexpr bool kHasTwoRoles = Config::kRoles == kSm80KeysOrValues;
  // Rows of a warp's scores at a time: kRowGroups times 16 keys and kRows streamed rows.
  static constexpr int kRows = kHasTwoRoles ? Config::kStreamed / Config::kParts : Config::kStep;
  static constexpr int kScores = kRows / 2;  // scores of a lane and a group of 16 keys
  // Columns of dk and dv that one warp sums.
  static constexpr int kColumns = round_up(ceil_div(Shape::kDepth, Config::kParts), 2 * kMmaColumns);
  static constexpr int kColumnsV = round_up(ceil_div(Shape::kDepthV, Config::kParts), 2 * kMmaColumns);
  static_assert(Config::kAddsDq && Config::kStreamed % kRows == 0 && (kHasTwoRoles || Config::kParts == 1));
};

template <class Config>
using Sm80PartScores = float[Config::kRowGroups][Sm80UnmodifiedShape<Config>::kScores];
template <class Config>
using Sm80PartOperands = OperandA[Config::kRowGroups][Sm80UnmodifiedShape<Config>::kRows / kMmaDepth];
template <class Config>
using Sm80KeySums = Sm80WarpSums<Config, Sm80UnmodifiedShape<Config>::kColumns>;
template <class Config>
using Sm80ValueSums = Sm80WarpSums<Config, Sm80UnmodifiedShape<Config>::kColumnsV>;

// Numbers of barriers. Warps of two roles reach the same barrier from different places in the code.
enum Sm80Barrier { kSm80HeadBarrier = 1, kSm80TileBarrier, kSm80ScoresBarrier };

// Waits until all warps of the block, of both roles, have arrived.
template <class Config>
__device__ __forceinline__ void sm80_wait_all(Sm80Barrier barrier) {
  barrier_wait_of_roles<Config::kThreads>(barrier);
}

// Tiles of rounded scores that warps of two roles share: ds, and p if several warps of a role share keys.
constexpr int kSm80DsTile = 0;
constexpr int kSm80PTile = 1;

// Returns the first streamed row of a head's first tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_tile(const Sm80BackwardBlock<Config>& block) {
  return block.streamed.begin / Config::kStreamed * Config::kStreamed;
}

// Returns whether any of `count` streamed rows from `row` on has a score with the warp's keys.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_meets_keys(const Sm80BackwardBlock<Config>& block, int row,
                                                              int count) {
  return block.own[sm80_key_warp<Config>()].meets(row, count);
}

// Waits for tile `row`, and starts the copies of the next one.
template <class Config>
__device__ __forceinline__ void sm80_begin_tile(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                int row) {
  cp_async_wait<0>();  // waits for the thread's own copies: of this tile, and of the owned tiles
  // Waits for all threads' copies, and until all ds of the previous tile is written. The previous tile, in the other
  // buffer, and its p have been read, and may be overwritten.
  sm80_wait_all<Config>(kSm80TileBarrier);
  const int next = row + Config::kStreamed;
  if (next < smem.block.streamed.end) sm80_send_streamed(smem, args, next, sm80_buffer<Config>(next));
  cp_async_commit();
}

// Writes a tile of the block's keys to dk or dv, by all threads. columns: existing columns, a multiple of 8.
template <class Config, class Tile>
__device__ __forceinline__ void sm80_store_key_tile(const Tile& tile, void* tensor, const TensorStrides& stride,
                                                    const Sm80BackwardBlock<Config>& block, int columns) {
  const int pieces = columns / kChunkElements;
  const SequenceSpan& span = block.span;
  auto* to = static_cast<Bits16*>(tensor) + span.keys().offset(stride, block.work.head, block.work.owned);
  const auto rows = static_cast<int>(min(span.seqlen_k - block.work.owned, int64{Tile::kRows}));
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += Config::kThreads) {
    *reinterpret_cast<uint4*>(to + i / pieces * stride.row + i % pieces * kChunkElements) =
        tile.chunk[Tile::index(i / pieces, i % pieces)];
  }
}

// Writes a warp's sums of dk and of dv, rounded, to the block's tiles.
template <class Config>
__device__ __forceinline__ void sm80_write_keys(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                const Sm80KeySums<Config>& dk) {
  constexpr float kFactor = kSm80ShiftsDs<ElementOf<Config>> ? kSm80Unshift<Config> : 1.0f;
  dk.write(smem.owned, args.base.gradient_scale * kFactor);
}
template <class Config>
__device__ __forceinline__ void sm80_write_values(Sm80BackwardStorage<Config>& smem, const Sm80ValueSums<Config>& dv) {
  dv.write(smem.owned_v, kSm80Unshift<Config>);
}

}  // namespace attend
