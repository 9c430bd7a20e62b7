// Forward pass of simt. Computes o = drop(softmax(s)) v and lse on CUDA cores, with every option of the interface.
//
// Shapes:   q (batch, heads, seqlen_q, d), k (batch, heads_k, seqlen_k, d), v (batch, heads_k, seqlen_k, d_v). Strides
//           are arbitrary except that the last is 1. Alignment is arbitrary. Sequences may be packed.
// Supports: float32, float16 and bfloat16, d and d_v from 1 to 512, every option, and every architecture. All sums and
// probabilities are float32.
// Work:     A block has kBlockM rows of a head. If d_v is large, the block has one of kColumnParts parts of the columns
//           of o. A warp has kWarpRows rows with all their keys. A lane has kRows x kKeys scores and kRows x kDims
//           outputs. Tiles and products are those of ladder/08_fa2.cuh. q and k are loaded in panels of kPanel columns.
//           If there is only one panel, q is loaded only once.
// Memory:   q, k and p are transposed in shared memory, and v is not (see SimtForwardShape). Tiles are loaded through
//           registers, where 16-bit elements are widened and NaN and infinities are detected (guarded_product.cuh).
//           While a block loads, other blocks on the multiprocessor compute.
// Measured: TFLOP/s for (batch, heads, rows and keys, d), without a mask, on an H200 with CUDA 13.0. In float32, simt
//           reaches 32.5 for (8, 16, 2048, 64), and 29.4 for (8, 8, 2048, 128). In bfloat16, it reaches 33.9 and 28.5
//           for these two problems, 24.5 for (4, 8, 2048, 256), and 13.8 for (2, 4, 2048, 512).
// Called:   for the backend 'simt' by src/cuda/launch/simt.cpp. 'auto' chooses simt if no faster kernel supports the
//           problem.
// Source:   Dao, FlashAttention-2 (2023), Algorithm 1.
#pragma once

#include "../attention/head_matrix.cuh"
#include "../attention/merge_rows.cuh"
#include "../attention/row_end.cuh"
#include "../attention/work.cuh"
#include "../common/numbers.cuh"
#include "../common/warp_reduce.cuh"
#include "grid_scores.cuh"
#include "guarded_product.cuh"
#include "simt_shape.cuh"
#include "tile_io.cuh"

namespace attend {

template <class Config>
struct SimtForwardShape {
  static constexpr int kPanels = Config::kPanels;  // number of panels of q and k
  static constexpr int kPanel = Config::kPanel;    // number of columns of a panel
  static constexpr int kCols = Config::kCols;      // number of columns of o in this block: head_dim_v or a part of it,
                                                   // rounded up
  static constexpr int kLanesX = Config::kLanesX;
  static constexpr int kLanesY = kWarpThreads / kLanesX;
  static constexpr int kWarpRows = Config::kBlockM / (Config::kThreads / kWarpThreads);
  static constexpr int kRows = kWarpRows / kLanesY;
  static constexpr int kKeys = Config::kBlockN / kLanesX;
  static constexpr int kDims = kCols / kLanesX;
  static constexpr int kStep = kLanesX * kChunkBytes;  // distance in bytes between consecutive chunks that a lane reads
                                                       // from a row of k or v
  static_assert(kRows % 4 == 0 && kKeys % 4 == 0 && kDims % 4 == 0 && kLanesX % 8 == 0 && kPanel % 8 == 0);
  static_assert(kPanels * kPanel >= Config::kHeadDim && Config::kColumnParts * kCols >= Config::kHeadDimV);

  // Tiles in shared memory, and their offsets in bytes. p and v are swizzled, because the keys of a lane are
  // neighbours, and each lane writes p of four keys.
  using QTile = Fp32Tile<kPanel, PaddedRows<Config::kBlockM, kTransposedPadding>>;
  using KTile = Fp32Tile<kPanel, PaddedRows<Config::kBlockN, kTransposedPadding>>;
  using VTile = Fp32Tile<Config::kBlockN, FlippedRows<kCols, 4>>;
  using PTile = Fp32Tile<Config::kBlockN, FlippedRows<Config::kBlockM, 4>>;
  static constexpr SimtForwardTile kTile = {.block_m = Config::kBlockM,
                                            .block_n = Config::kBlockN,
                                            .threads = Config::kThreads,
                                            .lanes_x = Config::kLanesX,
                                            .min_blocks = 0,
                                            .panels = {Config::kPanels, Config::kPanel},
                                            .columns = {Config::kColumnParts, Config::kCols}};
  static constexpr int kV = kTile.v_begin();
  static constexpr int kP = kTile.p_begin();
  static constexpr int kQ = kTile.q_begin();
  static constexpr int kK = kTile.k_begin();
  static_assert(kTile.smem_bytes() == Config::kSmemBytes);
  static_assert(kP - kV == VTile::kBytes && kQ - kP == PTile::kBytes && kK - kQ == QTile::kBytes &&
                Config::kSmemBytes - kK == KTile::kBytes);
  static_assert(kP % kBankRowBytes == 0);  // FlippedRows requires this alignment

  // A lane's share of scores and outputs, and the positions of its scores.
  using Scores = float[kRows][kKeys];
  using Outputs = float[kRows][kDims];
  using Place = ScorePlace<true, 4 * kLanesX>;
};

// First row of a lane in the block's tile, and the lane's position along the keys and along the columns of o.
template <class Config>
struct SimtLane {
  int row;
  int x;

  [[nodiscard]] __device__ __forceinline__ ChunksOfLane chunks() const { return {x, Config::kLanesX}; }
};

// Running softmax of a lane's rows. The maximum of a row is the same in all lanes that share the row. A sum covers only
// the lane's keys.
template <class Config>
struct SimtSoftmax {
  using Shape = SimtForwardShape<Config>;
  static constexpr int kRows = Shape::kRows;
  float max[kRows];  // maximum of the visible scores, or -inf before the first visible key
  float sum[kRows];  // sum of exp(score - max) over the lane's keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) max[i] = -kInfinity, sum[i] = 0.0f;
  }

  // Returns the lse of row i over its keys. `sum_of_lanes` is the row sum over all lanes.
  [[nodiscard]] __device__ __forceinline__ float lse(int i, float sum_of_lanes) const {
    return max[i] + logf(sum_of_lanes);
  }

  // Turns scores into p relative to the new maxima, or into kNotSeen. Rescales o and the sums to the new maxima.
  __device__ __forceinline__ void update(typename Shape::Scores& s, typename Shape::Outputs& o) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float tile_max = s[i][0];
#pragma unroll
      for (int j = 1; j < Shape::kKeys; ++j) tile_max = fmaxf(tile_max, s[i][j]);
      const float new_max = fmaxf(max[i], warp_max<Config::kLanesX>(tile_max));
      const float base = exponent_base(new_max);
      const float rescale = exp2_fast((max[i] - base) * kLog2E);
      max[i] = new_max;
      float tile_sum = 0.0f;
#pragma unroll
      for (int j = 0; j < Shape::kKeys; ++j) {
        const float p = exp2_fast((s[i][j] - base) * kLog2E);
        tile_sum += p;
        s[i][j] = s[i][j] == -kInfinity ? kNotSeen : p;
      }
      sum[i] = fmaf(sum[i], rescale, tile_sum);
#pragma unroll
      for (int d = 0; d < Shape::kDims; ++d) o[i][d] *= rescale;
    }
  }
};

// The part of the problem that a block computes.
template <class Config>
struct SimtForwardWork {
  uint32 sequence;
  uint32 head;
  int64 row;  // first row of the tile, counted in its sequence
  int part;   // number of the part of the columns of o

  [[nodiscard]] static __device__ __forceinline__ SimtForwardWork mine(const ForwardArgs& args) {
    const uint32 part = blockIdx.x % Config::kColumnParts;
    const uint32 block = blockIdx.x / Config::kColumnParts;
    const uint32 blocks = gridDim.x / Config::kColumnParts;
    const auto row_tiles = static_cast<uint32>(num_tiles(args.seqlen_q, Config::kBlockM));
    // Under a causal mask, the last tiles have the most keys, so they start first
    const auto [sequence, head, tile] = Config::kMask == MaskKind::kCausal
                                            ? tile_by_tile(blocks - 1 - block, args.batch, args.num_heads_q)
                                            : HeadTile::of_block(block, row_tiles, args.num_heads_q);
    return {sequence, head, tile * Config::kBlockM, static_cast<int>(part)};
  }
};

// Loads tiles into shared memory.
template <class Config>
struct SimtForwardTiles {
  using Shape = SimtForwardShape<Config>;
  using Source = RowSource<Config>;
  Source q;
  const ForwardArgs& args;
  SequenceSpan span;
  uint32 head_k;
  int part;

  __device__ __forceinline__ SimtForwardTiles(const ForwardArgs& base, const SequenceSpan& sequence,
                                              const SimtForwardWork<Config>& work)
      : q(Source::of(base.q, sequence.query_offset(base.q_stride, work.head, work.row), base.q_stride.row,
                     sequence.seqlen_q - work.row, Config::kHeadDim)),
        args(base),
        span(sequence),
        head_k(key_head_of(base, work.head)),
        part(work.part) {}

  __device__ __forceinline__ void load_q(int panel) const {
    load_transposed<typename Shape::QTile>(Shape::kQ, q.columns_from(panel * Shape::kPanel));
  }

  __device__ __forceinline__ void load_k(int64 key, int panel) const {
    const Source k = Source::of(args.k, span.keys().offset(args.k_stride, head_k, key), args.k_stride.row,
                                span.seqlen_k - key, Config::kHeadDim);
    load_transposed<typename Shape::KTile>(Shape::kK, k.columns_from(panel * Shape::kPanel));
  }

  // Returns whether this thread loaded only finite numbers.
  [[nodiscard]] __device__ __forceinline__ bool load_v(int64 key) const {
    const Source v = Source::of(args.v, span.keys().offset(args.v_stride, head_k, key), args.v_stride.row,
                                span.seqlen_k - key, Config::kHeadDimV);
    FiniteWatch watch;
    load_rows<typename Shape::VTile>(Shape::kV, v.columns_from(part * Shape::kCols), watch);
    return !watch.saw_other();
  }
};

// Adds q k^T to the lane's s, for the tile of keys from `key` on. Loads k and v of this tile. Returns whether v is
// finite.
template <class Config>
[[nodiscard]] __device__ __forceinline__ bool simt_scores(typename SimtForwardShape<Config>::Scores& s,
                                                          const SimtForwardTiles<Config>& tiles, int64 key,
                                                          bool is_first, const SimtLane<Config>& lane) {
  using Shape = SimtForwardShape<Config>;
  using Keys = Fp32Chunks<typename Shape::KTile, Shape::kStep>;
  bool v_is_finite = true;
#pragma unroll 1
  for (int panel = 0; panel < Shape::kPanels; ++panel) {
    __syncthreads();  // waits until every warp has finished with the previous panel, and with p v of the previous tile;
                      // their memory may then be overwritten
    if (Shape::kPanels > 1 || is_first) tiles.load_q(panel);
    tiles.load_k(key, panel);
    if (panel == 0) v_is_finite = tiles.load_v(key);
    v_is_finite = __syncthreads_and(v_is_finite);  // waits until the panel and v are loaded; all warps may then read
                                                   // them
    Fp32Columns<typename Shape::QTile>{Shape::kQ, lane.row * 4}.add_product(s, Keys{Shape::kK, lane.x * kChunkBytes});
  }
  return v_is_finite;
}

// Stores the lane's p as columns of the tile in shared memory.
template <class Config>
__device__ __forceinline__ void simt_store_p(const typename SimtForwardShape<Config>::Scores& p,
                                             const typename SimtForwardShape<Config>::Place& place) {
  using Shape = SimtForwardShape<Config>;
#pragma unroll
  for (int j = 0; j < Shape::kKeys; ++j) {
#pragma unroll
    for (int i = 0; i < Shape::kRows; i += 4) {
      *reinterpret_cast<float4*>(fp32_smem + Shape::kP + Shape::PTile::offset(place.key(i, j), place.row(i, j))) =
          make_float4(p[i][j], p[i + 1][j], p[i + 2][j], p[i + 3][j]);
    }
  }
}

// Merges the lane's share of o and lse into the float o and lse in memory, which cover other keys. Used if
// kAddsToOutputs is set.
template <class Config>
__device__ __forceinline__ void simt_merge_output(const ForwardOptionArgs& args, const SequenceSpan& span,
                                                  const SimtForwardWork<Config>& work, const SimtLane<Config>& lane,
                                                  const SimtSoftmax<Config>& rows,
                                                  const typename SimtForwardShape<Config>::Outputs& o) {
  constexpr int kRows = SimtForwardShape<Config>::kRows;
  static_assert(!Score<Config>::kAddsToSum, "each part would add the logit to the sum");
  static_assert(Config::kColumnParts == 1);  // otherwise another block could read lse after it was written
  const ForwardArgs& base = args.base;
  const int64 first = span.q_begin + work.row + lane.row;
  float* const lse = base.lse + base.lse_stride.offset(span.batch, work.head, first);
  const int64 rows_left = span.seqlen_q - work.row - lane.row;
  const auto end = RowEnd<Config>::of(args.options, work.sequence, work.head);
  float before[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) before[i] = i < rows_left ? lse[i * base.lse_stride.row] : -kInfinity;
  __syncwarp();  // waits until the lanes of a row have read its lse; one of them may then overwrite it
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = warp_sum<Config::kLanesX>(rows.sum[i]);
    if (i >= rows_left) continue;
    const float factor = end.factor(inverse_or_zero(sum), rows.lse(i, sum));
    const MergedLse weights = merged(before[i], end.lse(rows.lse(i, sum)));
    auto* const out = static_cast<float*>(base.o) + base.o_stride.offset(span.batch, work.head, first + i);
    add_to_row(out, Config::kHeadDimV, lane.chunks(), o[i], before[i] != -kInfinity, weights.before,
               weights.part * factor);
    if (lane.x == 0) lse[i * base.lse_stride.row] = weights.lse;
  }
}

// Stores the lane's share of o and lse.
template <class Config>
__device__ __forceinline__ void simt_store_output(const ForwardOptionArgs& args, const SequenceSpan& span,
                                                  const SimtForwardWork<Config>& work, const SimtLane<Config>& lane,
                                                  const SimtSoftmax<Config>& rows,
                                                  const typename SimtForwardShape<Config>::Outputs& o) {
  using Storage = typename ElementOf<Config>::Storage;
  constexpr int kCols = SimtForwardShape<Config>::kCols;
  const auto end = RowEnd<Config>::of(args.options, work.sequence, work.head);
#pragma unroll
  for (int i = 0; i < SimtForwardShape<Config>::kRows; ++i) {
    const float sum = warp_sum<Config::kLanesX>(rows.sum[i]);
    const int64 row = work.row + lane.row + i;
    if (row >= span.seqlen_q) continue;
    const ForwardArgs& base = args.base;
    const float factor = end.factor(inverse_or_zero(sum), rows.lse(i, sum));
    const int first_col = work.part * kCols;
    auto* out = static_cast<Storage*>(base.o) + span.query_offset(base.o_stride, work.head, row);
    store_row<Config>(out + first_col, min(kCols, Config::kHeadDimV - first_col), lane.chunks(), o[i], factor);
    if (base.lse != nullptr && lane.x == 0 && work.part == 0) {
      base.lse[span.query_offset(base.lse_stride, work.head, row)] = end.lse(rows.lse(i, sum));
    }
  }
}

// Turns the lane's q.k into p. Applies the tile's rules, then the softmax, which rescales o, and then dropout.
template <class Config>
__device__ __forceinline__ void simt_weights(typename SimtForwardShape<Config>::Scores& s, SimtSoftmax<Config>& rows,
                                             typename SimtForwardShape<Config>::Outputs& o,
                                             const TileRules<Config>& tile,
                                             const typename SimtForwardShape<Config>::Place& place) {
  using Shape = SimtForwardShape<Config>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys;
  const GridRules<Config, typename Shape::Place> grid = {tile, place};
  typename Shape::Scores unused;
  if (tile.template all_visible<Config::kBlockM, Config::kBlockN>()) {
    grid.template apply<true, false>(s, unused);
  } else {
    grid.template apply<false, false>(s, unused);
  }
  rows.update(s, o);
  if constexpr (Score<Config>::kDrops) {
    const uint32 kept = grid.template kept_bits<kRows, kKeys>();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) s[i][j] = is_kept(kept, i * kKeys + j) ? s[i][j] : kNotSeen;
    }
  }
}

// Computes one tile of kBlockM query rows. The grid has kColumnParts blocks for each tile of every query head of every
// sequence.
template <class Config>
__device__ void simt_forward(const ForwardOptionArgs& args) {
  using Shape = SimtForwardShape<Config>;
  using Values = Fp32Chunks<typename Shape::VTile, Shape::kStep>;
  const auto work = SimtForwardWork<Config>::mine(args.base);
  const SequenceSpan span = sequence_span<Config>(args.base, args.options, work.sequence);
  if (work.row >= span.seqlen_q) return;
  const SimtForwardTiles<Config> tiles(args.base, span, work);
  const auto rules =
      ScoreRules<Config>::make(args.options, args.base.scale, span, work.sequence, work.head, args.base.num_heads_q);
  const KeyRange keys = rules.window.rows(work.row, min(work.row + Config::kBlockM, span.seqlen_q));

  const int lane_x = threadIdx.x % Config::kLanesX;
  const int lane_row =
      threadIdx.x / kWarpThreads * Shape::kWarpRows + threadIdx.x % kWarpThreads / Config::kLanesX * Shape::kRows;
  const SimtLane<Config> lane = {lane_row, lane_x};
  const typename Shape::Place place = {lane.row, lane.x * 4};
  SimtSoftmax<Config> rows;
  rows.clear();
  typename Shape::Outputs o = {};
  const auto next_tile = [&](int64 from) {
    return rules.map.template next_keys<Config::kBlockM, Config::kBlockN>(work.row, from, keys.end);
  };
  const int64 first_key = next_tile(keys.begin / Config::kBlockN * Config::kBlockN);
#pragma unroll 1
  for (int64 key = first_key; key < keys.end; key = next_tile(key + Config::kBlockN)) {
    typename Shape::Scores s = {};
    const bool v_is_finite = simt_scores(s, tiles, key, key == first_key, lane);
    simt_weights<Config>(s, rows, o, rules.tile(work.row, key), place);
    simt_store_p<Config>(s, place);
    __syncwarp();  // waits until p of the warp's rows is complete; no other warp reads it
    MarkedColumns<typename Shape::PTile>{Shape::kP, lane.row * 4}.add_product(
        o, Values{Shape::kV, lane.x * kChunkBytes}, v_is_finite);
  }
  if constexpr (Config::kAddsToOutputs) {
    simt_merge_output(args, span, work, lane, rows, o);
  } else {
    simt_store_output(args, span, work, lane, rows, o);
  }
}

}  // namespace attend
