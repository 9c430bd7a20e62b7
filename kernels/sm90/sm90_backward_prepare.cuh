// Runs before the main backward kernel on sm90. Computes statistics of query rows, clears the dq sums and resets
// counters.
//
//   delta    = rowsum(dout * o) - dlse, multiplied by (1 - dropout probability).
//   lse_log2 = log2(e) lse - p_bits. With a transform, lse_offset is subtracted, too. With a bias, lse_log2 is lse
//              itself. The same holds for a custom score that may be as low as -FLT_MAX. If kSoleKey is set, rows with
//              only one visible key get the delta that follows from an unrounded o.
//
// Shapes   as in sm90_backward.cuh. Rows are padded to complete tiles. Rows that see no key or do not exist get
//          lse_log2 = +inf and delta = 0, so their p and all their gradients are 0.
// Source   Dao, FlashAttention-2 (2023), Algorithm 2, line 4
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/sole_key.cuh"
#include "../common/warp_reduce.cuh"
#include "sm90_backward_layout.cuh"
#include "sm90_backward_store.cuh"
#include "sm90_backward_units.cuh"
#include "sm90_backward_work.cuh"
#include "sm90_backward_workspace.cuh"

namespace attend {

// One tile of query rows of one query head. Each block of the prepare and finish kernels processes one such tile. Heads
// are adjacent in the grid, because the heads of a token are usually adjacent in memory.
struct BackwardRowTile {
  uint32 sequence;
  uint32 head;
  SequenceSpan span;
  int64 row;        // first row of the tile, as an index in the sequence
  int64 rows_left;  // rows of the sequence from `row` on; not positive if the tile has no rows
  int64 stats_row;  // first row of the tile in the padded statistics, counted through all heads

  template <class Config>
  [[nodiscard]] static __device__ __forceinline__ BackwardRowTile mine(const Sm90BackwardArgs& args) {
    const auto tiles = static_cast<uint32>(num_tiles(args.base.seqlen_q, kBackwardRows));
    const uint32 of_heads = blockIdx.x / args.base.num_heads_q;
    const uint32 sequence = tiles == 0 ? 0 : of_heads / tiles;
    BackwardRowTile tile = {sequence, blockIdx.x % args.base.num_heads_q, {}, 0, 0, 0};
    if (tiles == 0 || sequence >= args.base.batch) return tile;
    tile.span = sequence_span<Config>(args.base, args.options, sequence);
    tile.row = int64{of_heads % tiles} * kBackwardRows;
    tile.rows_left = tile.span.seqlen_q - tile.row;
    tile.stats_row = (int64{tile.span.batch} * args.base.num_heads_q + tile.head) * args.stats_rows +
                     backward_stats_begin<Config>(tile.span, sequence) + tile.row;
    return tile;
  }

  // Returns the position of a row's statistics. `row` is an index in the tile.
  [[nodiscard]] __device__ __forceinline__ int64 place(int row) const {
    return stats_row + row / 16 * 16 + sm90_backward_stats_place(row);
  }
};

template <class Element>
[[nodiscard]] __device__ __forceinline__ float dot_piece(const uint4& a, const uint4& b) {
  const uint32 x[4] = {a.x, a.y, a.z, a.w};
  const uint32 y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(Element::low(x[i]), Element::low(y[i]), sum);
    sum = fmaf(Element::high(x[i]), Element::high(y[i]), sum);
  }
  return sum;
}

// Resets the counters that the main kernel uses. Only one block calls this.
template <class Config>
__device__ __forceinline__ void reset_counters(const Sm90BackwardArgs& args) {
  constexpr int kWarpgroups = Config::kBlockN / 64;
  if (threadIdx.x == 0) *args.next_item = 0;
  if (kBackwardTile<Config>.is_persistent) {
    for (uint32 i = threadIdx.x; i < args.num_blocks * kWarpgroups; i += kBackwardPrepareThreads) {
      args.partial_ready[i] = 0;
    }
  }
}

// Replaces delta of rows with only one visible key, if kSoleKey is set. kLanes threads share a row, and the first of
// them reads and writes its delta.
template <class Config, int kLanes>
__device__ __forceinline__ void unround_deltas(float (&delta)[kBackwardRows], const Sm90BackwardArgs& args,
                                               const BackwardRowTile& tile) {
  const bool is_first = threadIdx.x % kLanes == 0;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kBackwardRows; row += kBackwardPrepareThreads / kLanes) {
    const float unrounded = sole_key_delta<Config, kLanes>(args.base, args.options, tile.span, tile.sequence, tile.head,
                                                           tile.row + row, is_first ? delta[row] : 0.0f);
    if (is_first) delta[row] = unrounded;
  }
}

// Stores lse_log2_sum() for each row of the tile, with one warp per row. All threads of the block must call this.
template <class Config>
__device__ __forceinline__ void sum_rows(const float (&lse)[kBackwardRows], const Sm90BackwardArgs& args,
                                         const BackwardRowTile& tile) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int row = thread / kWarpThreads; row < kBackwardRows; row += kBackwardPrepareThreads / kWarpThreads) {
    const float sum = lse_log2_sum<Config, kWarpThreads>(args.base, args.options, tile.span, tile.sequence, tile.head,
                                                         tile.row + row, lse[row]);
    if (thread % kWarpThreads == 0) args.log2_sums[tile.place(row)] = sum;
  }
}

// Clears the dq sums and the turn counters of the tile's rows before the main kernel uses them.
template <class Config>
__device__ __forceinline__ void reset_dq(const Sm90BackwardArgs& args, const BackwardRowTile& tile) {
  constexpr Sm90BackwardTile kTile = kBackwardTile<Config>;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (!kTile.is_wide && !Config::kOwnsHeads) {
    auto* sums = reinterpret_cast<float4*>(args.dq_sums + tile.stats_row * kTile.depth);
#pragma unroll
    for (int i = 0; i < kBackwardRows * kTile.depth / 4; i += kBackwardPrepareThreads) sums[i + thread] = {};
  }
  if (Config::kIsDeterministic && thread < kBackwardTurns) {
    args.dq_turns[tile.stats_row / kBackwardRows * kBackwardTurns + thread] = 0;
  }
}

// Returns the lowest lse for which hidden entries still get p = 0. A row that sees no key may have an lse as low as
// -FLT_MAX, if that is the logit of its head (Score<Config>::kAddsToSum). At the returned limit lse_log2 is finite.
// With a transform it is also well above the value of a hidden entry (wide_unseen()). A row that sees a key never has a
// lower lse.
template <class Config>
[[nodiscard]] __device__ __forceinline__ float lowest_lse(const OptionArgs& options) {
  if constexpr (Score<Config>::kTransforms) return -1e17f * ScoreTransform::cap_of(options);
  return -1e38f;
}

// Stores the statistics of row `thread` of the tile. `delta` holds rowsum(dout * o) of the tile's rows.
template <class Config>
__device__ __forceinline__ void store_statistics(const Sm90BackwardArgs& args, const BackwardRowTile& tile, float lse,
                                                 const float (&delta)[kBackwardRows]) {
  constexpr int kPBits = sm90_backward_units(Config::kElement).p_bits;
  const BackwardArgs& base = args.base;
  const int thread = static_cast<int>(threadIdx.x);
  float row_lse = kInfinity, row_delta = 0.0f;
  if (thread < tile.rows_left) {
    if (lse != -kInfinity) {
      const float lowest = lowest_lse<Config>(args.options);
      const float finite = lse < lowest ? lowest : lse;  // this form of the maximum keeps NaN
      row_lse = kSumsRows<Config> ? lse : fmaf(finite, kLog2E, static_cast<float>(-kPBits));
      if constexpr (Score<Config>::kTransforms) row_lse -= args.transform.lse_offset;
      row_delta = delta[thread];
      if (base.dlse != nullptr) {
        row_delta -= base.dlse[tile.span.query_offset(base.dlse_stride, tile.head, tile.row + thread)];
      }
      if constexpr (Score<Config>::kDrops) row_delta /= kept_scale<Config>(args.options);
    }
  }
  args.lse_log2[tile.place(thread)] = row_lse;
  args.delta[tile.place(thread)] = row_delta;
}

// Prepares one tile of query rows. Grid: sm90_backward_row_blocks(), with kBackwardPrepareThreads threads per block.
template <class Config>
__device__ void sm90_backward_prepare(const Sm90BackwardArgs& args) {
  using Element = ElementOf<Config>;
  constexpr Sm90BackwardTile kTile = kBackwardTile<Config>;
  // Threads that share a row; a power of two.
  constexpr int kLanes = (kTile.depth_v > 128 ? 256 : kTile.depth_v) / kPieceElements;
  static_assert(kFitsTiles<Config>);
  constexpr int kRowStep = kBackwardPrepareThreads / kLanes;
  constexpr int kRowsOfLane = kBackwardRows / kRowStep;
  __shared__ float delta[kBackwardRows];
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0) reset_counters<Config>(args);
  const auto tile = BackwardRowTile::mine<Config>(args);
  if (tile.rows_left <= 0) return;
  const BackwardArgs& base = args.base;
  const auto* dout =
      static_cast<const Bits16*>(base.dout) + tile.span.query_offset(base.dout_stride, tile.head, tile.row);
  const auto* o = static_cast<const Bits16*>(base.o) + tile.span.query_offset(base.o_stride, tile.head, tile.row);
  float lse = thread < kBackwardRows ? kInfinity : 0.0f;  // lse of row `thread` of the tile
  if (thread < kBackwardRows && thread < tile.rows_left) {
    lse = base.lse[tile.span.query_offset(base.lse_stride, tile.head, tile.row + thread)];
  }
  uint4 x[kRowsOfLane] = {}, y[kRowsOfLane] = {};
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) {  // all loads are issued before the first result is used
    const int row = i * kRowStep + thread / kLanes;
    const int column = thread % kLanes * kPieceElements;
    if (row >= tile.rows_left) continue;
    x[i] = load_piece<Config::kHeadDimV>(dout + row * base.dout_stride.row, column);
    y[i] = load_piece<Config::kHeadDimV>(o + row * base.o_stride.row, column);
  }
  reset_dq<Config>(args, tile);
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) {
    const float sum = warp_sum<kLanes>(dot_piece<Element>(x[i], y[i]));
    if (thread % kLanes == 0) delta[i * kRowStep + thread / kLanes] = sum;
  }
  if constexpr (Config::kSoleKey) unround_deltas<Config, kLanes>(delta, args, tile);
  if constexpr (kSumsRows<Config>) {
    __shared__ float row_lse[kBackwardRows];
    if (thread < kBackwardRows) row_lse[thread] = lse;
    // After the next barrier all values of delta and row_lse are visible.
    const bool may_be_coarse = Score<Config>::kMayBeLowest ? is_coarse(lse) : fabsf(lse) >= kCoarseLse;
    if (__syncthreads_or(may_be_coarse) != 0) {
      sum_rows<Config>(row_lse, args, tile);
      if (Score<Config>::kMayBeLowest && thread == 0) *args.has_coarse_rows = 1;
    } else if constexpr (Score<Config>::kMayBeLowest) {
      // A coarse row in any tile makes the main kernel read the sums of all tiles.
      if (thread < kBackwardRows) args.log2_sums[tile.place(thread)] = 0.0f;
    }
  } else {
    __syncthreads();  // all values of delta are visible
  }
  if (thread < kBackwardRows) store_statistics<Config>(args, tile, lse, delta);
}

}  // namespace attend
