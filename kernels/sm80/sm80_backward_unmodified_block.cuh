// Code that the roles of sm80_backward_unmodified share: barriers, the change to the next tile, tiles of rounded
// scores, and the stores of gradients.
#pragma once

#include "../isa/named_barrier.cuh"
#include "sm80_backward_dq.cuh"
#include "sm80_backward_scores.cuh"

namespace attend {

template <class Config>
struct Sm80UnmodifiedShape : Sm80BackwardShape<Config> {
  using Shape = Sm80BackwardShape<Config>;
  static constexpr bool kHasTwoRoles = Config::kRoles == kSm80KeysOrValues;
  // Streamed rows whose scores a warp computes at the same time, for its 16 * kRowGroups keys.
  static constexpr int kRows = kHasTwoRoles ? Config::kStreamed / Config::kParts : Config::kStep;
  static constexpr int kScores = kRows / 2;  // scores that a lane holds for each group of 16 keys
  // Columns of dk and of dv that one warp sums.
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

// Numbers of the named barriers. The warps of two roles reach the same barrier from different places in the code.
enum Sm80Barrier { kSm80HeadBarrier = 1, kSm80TileBarrier, kSm80ScoresBarrier };

// Waits until all warps of the block, in both roles, have arrived.
template <class Config>
__device__ __forceinline__ void sm80_wait_all(Sm80Barrier barrier) {
  barrier_wait_of_roles<Config::kThreads>(barrier);
}

// Indices of the tiles of rounded scores that the warps share: a tile of ds, and a tile of p if several warps of a role
// share keys.
constexpr int kSm80DsTile = 0;
constexpr int kSm80PTile = 1;

// Returns the first streamed row of a head's first tile.
template <class Config>
[[nodiscard]] __device__ __forceinline__ int sm80_first_tile(const Sm80BackwardBlock<Config>& block) {
  return block.streamed.begin / Config::kStreamed * Config::kStreamed;
}

// Returns whether any of the `count` streamed rows from `row` on sees one of the warp's keys.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool sm80_meets_keys(const Sm80BackwardBlock<Config>& block, int row,
                                                              int count) {
  return block.own[sm80_key_warp<Config>()].meets(row, count);
}

// Waits until the streamed tile that starts at `row` has arrived, and starts the copies of the next tile.
template <class Config>
__device__ __forceinline__ void sm80_begin_tile(Sm80BackwardStorage<Config>& smem, const BackwardOptionArgs& args,
                                                int row) {
  cp_async_wait<0>();  // waits for this thread's copies: this tile and the owned tiles
  // Waits for the copies of all threads, and until ds of the previous tile is complete. The previous tile, in the other
  // buffer, and its p have been read and may be overwritten.
  sm80_wait_all<Config>(kSm80TileBarrier);
  const int next = row + Config::kStreamed;
  if (next < smem.block.streamed.end) sm80_send_streamed(smem, args, next, sm80_buffer<Config>(next));
  cp_async_commit();
}

// Writes a tile of the block's dk or dv to memory. All threads must call this. `columns` is the number of columns
// without padding, a multiple of 8.
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

// sm80_write_keys() rounds a warp's sums of dk and writes them to the block's tile. sm80_write_values() does the same
// for dv.
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
