// Computes bounds of a mask function over the rows and keys of each tile, and decides from the bounds whether the tile
// is seen. This decides most tiles of causal masks, windows and sorted documents. The other tiles are listed for
// mask_patterns, in any order.
//
// Work:     Each thread decides one tile, without a loop over pairs. A mask of 131072 x 131072 takes 4.2 M threads.
// Memory:   The kernel writes 4 bytes for each tile. It reads bounds of captured tensors, which neighbouring tiles
//           share.
#pragma once

#include "../common/warp_reduce.cuh"
#include "../isa/grid_dependency.cuh"
#include "capture_bounds.cuh"
#include "maker_tile.cuh"
#include "mask_args.cuh"
#include "mask_code.cuh"

namespace attend {

// Returns the kind of a tile: kAllSeen, kNoneSeen or kUndecidedTile.
[[nodiscard]] __device__ __forceinline__ int kind_by_bounds(const MaskMakerArgs& args, int tile) {
  const MakerTile at = MakerTile::of(args, tile);
  const auto one = [](int64 x) { return mask_bounds::constant(x); };
  const BoundsPoint ranges = {
      one(at.batch),      one(at.head),      {at.row, at.row + at.num_rows - 1}, {at.key, at.key + at.num_keys - 1},
      one(args.seqlen_q), one(args.seqlen_k)};
  mask_bounds::Bools seen;
  MaskBoundsCode::evaluate(ranges, CaptureBounds{args.captured, args.ranges}, seen);
  return !seen.high ? kNoneSeen : seen.low ? kAllSeen : kUndecidedTile;
}

// The grid has one thread for each tile.
template <class Config>
__device__ void mask_kinds(const MaskMakerArgs& args) {
  static_assert(Config::kThreads == kMakerThreads);
  wait_for_kernels_before();
  let_next_kernel_start();
  const int64 number = int64{blockIdx.x} * kMakerThreads + static_cast<int>(threadIdx.x);
  const int tile = static_cast<int>(number);  // Tile numbers are less than 2^31. Larger numbers are not used
  int kind = kNoneSeen;
  if (number < args.tiles) {
    kind = kind_by_bounds(args, tile);
    args.kinds[tile] = kind;
  }
  const uint32 undecided = __ballot_sync(kAllLanes, kind == kUndecidedTile);
  if (undecided == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int first = 0;
  if (lane == 0) first = atomicAdd(&args.counts->undecided, __popc(undecided));  // one operation for all lanes
  first = __shfl_sync(kAllLanes, first, 0);
  if (kind == kUndecidedTile) args.undecided[first + __popc(undecided & ((1u << lane) - 1))] = tile;
}

}  // namespace attend
