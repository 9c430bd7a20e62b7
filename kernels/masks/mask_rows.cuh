// Runs after mask_patterns. Writes each row of tiles as entries in ascending order of keys. An entry is a run of tiles
// that are seen in full, or a single tile with a pattern. Rows are stored in any order, so that no row waits until the
// length of another is known.
//
// Work:     A block has a row of tiles. It reads the row twice, first to count entries and then to write them.
// Memory:   The kernel reads 4 bytes for each tile, twice. It writes 12 bytes for each entry.
#pragma once

#include "../common/warp_reduce.cuh"
#include "../isa/grid_dependency.cuh"
#include "mask_args.cuh"

namespace attend {

// The kinds of the tiles of a row.
struct RowOfKinds {
  const int* kinds;
  int columns;

  [[nodiscard]] __device__ __forceinline__ bool is_full(int column) const {
    return column >= 0 && column < columns && kinds[column] == kAllSeen;
  }
  // begins() returns whether an entry begins with the tile. ends() returns whether an entry ends with the tile.
  [[nodiscard]] __device__ __forceinline__ bool begins(int column) const {
    return column < columns && (kinds[column] >= 0 || (is_full(column) && !is_full(column - 1)));
  }
  [[nodiscard]] __device__ __forceinline__ bool ends(int column) const {
    return column < columns && (kinds[column] >= 0 || (is_full(column) && !is_full(column + 1)));
  }
};

// Two sums of a number that each warp passes. The first is over the warps before this one, the second over all warps.
struct SumOfWarps {
  int before, all;

  // Computes the sums. All threads of the block call it. `own` is the number that this warp passes, which is the same
  // in all lanes. `numbers` is a buffer with one element for each warp.
  template <int kWarps>
  [[nodiscard]] static __device__ __forceinline__ SumOfWarps of(int own, int (&numbers)[kWarps]) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    __syncthreads();  // waits until all threads have read the numbers of the previous call, which may then be
                      // overwritten
    if (threadIdx.x % kWarpThreads == 0) numbers[warp] = own;
    __syncthreads();  // waits until all numbers are written; any thread may then read them
    SumOfWarps sum = {0, 0};
#pragma unroll
    for (int n = 0; n < kWarps; ++n) {
      if (n < warp) sum.before += numbers[n];
      sum.all += numbers[n];
    }
    return sum;
  }
};

// The grid has one block for each row of tiles of all heads.
template <class Config>
__device__ void mask_rows(const MaskMakerArgs& args) {
  static_assert(Config::kThreads == kMakerThreads);
  constexpr int kWarps = kMakerThreads / kWarpThreads;
  __shared__ int of_warps[kWarps];
  __shared__ int first_of_row;
  wait_for_kernels_before();
  let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads;
  const RowOfKinds row = {args.kinds + int64{blockIdx.x} * args.tile_columns, args.tile_columns};
  int count = 0;
  for (int from = 0; from < row.columns; from += kMakerThreads) {
    count += __popc(__ballot_sync(kAllLanes, row.begins(from + thread)));
  }
  const int all = SumOfWarps::of(count, of_warps).all;
  if (thread == 0) {
    first_of_row = atomicAdd(&args.counts->entries, all);
    args.rows[blockIdx.x] = {first_of_row, all};
  }
  __syncthreads();  // waits until first_of_row is written; all threads may then read it
  int before = first_of_row;
  if (int64{before} + all > args.most_entries) return;  // the host detects this from the count, and allocates more
  for (int from = 0; from < row.columns; from += kMakerThreads) {
    const int column = from + thread;
    const bool begins = row.begins(column);
    const uint32 of_warp = __ballot_sync(kAllLanes, begins);
    const SumOfWarps sum = SumOfWarps::of(__popc(of_warp), of_warps);
    const int at = before + sum.before + __popc(of_warp & ((1u << lane) - 1));
    if (begins) {
      const int kind = row.kinds[column];
      args.entries[at].begin = column;
      args.entries[at].pattern = kind < 0 ? kind : args.numbers[kind];
    }
    if (row.ends(column)) args.entries[begins ? at : at - 1].end = column + 1;
    before += sum.all;
  }
}

}  // namespace attend
