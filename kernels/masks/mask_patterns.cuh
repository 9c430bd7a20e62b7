// Runs after mask_kinds. Evaluates a mask function at the pairs of the tiles that bounds have not decided.
//
// Work:     A warp has a tile, and each lane has two of the tile's rows. The warp evaluates one key after another. For
//           each key, two ballots yield the bits of all rows. Each lane does 128 evaluations. If the grid has n warps,
//           each warp processes every n-th undecided tile.
// Memory:   The kernel writes 4 bytes for each tile, and 512 bytes for each new pattern.
#pragma once

#include "../common/warp_reduce.cuh"
#include "../isa/grid_dependency.cuh"
#include "maker_tile.cuh"
#include "mask_args.cuh"
#include "mask_code.cuh"
#include "pattern_table.cuh"

namespace attend {

[[nodiscard]] __device__ __forceinline__ bool sees(const MaskMakerArgs& args, const MakerTile& tile, int row, int key) {
  ScorePoint<float> at = {};
  at.batch = tile.batch;
  at.head = tile.head;
  at.row = tile.row + row;
  at.key = tile.key + key;
  at.rows_length = static_cast<int>(args.seqlen_q);
  at.keys_length = static_cast<int>(args.seqlen_k);
  bool result;
  MaskValueCode::evaluate(at, MaskCode::Tensors{args.captured}, result);
  return result;
}

// Returns the pattern of a tile. Bits of rows and keys that do not exist are 0.
[[nodiscard]] __device__ __forceinline__ WordsOfLane pattern_of(const MaskMakerArgs& args, const MakerTile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const bool has_low = lane < tile.num_rows, has_high = lane + kWarpThreads < tile.num_rows;
  WordsOfLane words = {0, 0};
#pragma unroll 4  // keeps the loads of several keys in flight
  for (int key = 0; key < tile.num_keys; ++key) {
    const uint32 low = __ballot_sync(kAllLanes, has_low && sees(args, tile, lane, key));
    const uint32 high = __ballot_sync(kAllLanes, has_high && sees(args, tile, lane + kWarpThreads, key));
    const uint64 word = uint64{high} << 32 | low;
    if (key == lane) words.low = word;
    if (key == lane + kWarpThreads) words.high = word;
  }
  return words;
}

// Returns the pattern in which all existing rows see all existing keys.
[[nodiscard]] __device__ __forceinline__ WordsOfLane full_pattern(const MakerTile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const uint64 rows = tile.num_rows == kMakerTile ? ~uint64{0} : (uint64{1} << tile.num_rows) - 1;
  return {lane < tile.num_keys ? rows : 0, lane + kWarpThreads < tile.num_keys ? rows : 0};
}

// The grid may have any number of blocks.
template <class Config>
__device__ void mask_patterns(const MaskMakerArgs& args) {
  static_assert(Config::kThreads == kMakerThreads);
  constexpr int kWarps = kMakerThreads / kWarpThreads;
  wait_for_kernels_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int undecided = args.counts->undecided;
  PatternTable table(args);
  // n has 64 bits, because the last step may exceed the range of an int
  for (int64 n = int64{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads; n < undecided;
       n += int64{gridDim.x} * kWarps) {
    const int number = args.undecided[n];
    const MakerTile tile = MakerTile::of(args, number);
    const WordsOfLane words = pattern_of(args, tile);
    int kind = kNoneSeen;
    if (__all_sync(kAllLanes, words == full_pattern(tile))) {
      kind = kAllSeen;
    } else if (__any_sync(kAllLanes, (words.low | words.high) != 0)) {
      kind = table.place_of(words);
    }
    if (lane == 0) args.kinds[number] = kind;
  }
}

}  // namespace attend
