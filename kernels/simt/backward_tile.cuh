// One tile of the backward pass: p and the gradient of the scores, from products of tiles of q, k, dout and v.
//
//   p = exp(s - lse)    ds = p * (dropout(dout v^T) - delta)    delta = rowsum(dout * o) - dlse
//
// divided by what a row's p sum to where its lse is coarse: lse_rounding.cuh.
//
// A block owns a tile of keys (for dk and dv, or the bias's gradient) or of query rows (for dq) and streams over tiles
// of the other kind. The tensors come in pairs: pair 0 is q and k, pair 1 dout and v, and each product of the tile is
// that of the streamed member with the owned one, transposed. So both kinds of block run the same code.
//
// kPanels == 1: both owned tiles stay in shared memory, and the streamed ones serve the gradients too. Otherwise the
// products go through the columns panel by panel, and a block's gradients are one of kColumnParts parts of the columns.
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../attention/saved_row.cuh"
#include "../common/numbers.cuh"
#include "grid_scores.cuh"
#include "guarded_product.cuh"
#include "simt_shape.cuh"
#include "tile_io.cuh"

namespace attend {

template <class Config, SimtGradient kGradient>
struct SimtBackwardShape {
  static constexpr SimtBackwardTile kTile = {.gradient = kGradient,
                                             .head_dim = Config::kHeadDim,
                                             .head_dim_v = Config::kHeadDimV,
                                             .block_m = Config::kBlockM,
                                             .block_n = Config::kBlockN,
                                             .threads = Config::kThreads,
                                             .threads_x = Config::kThreadsX,
                                             .min_blocks = 0,
                                             .resident = Config::kPanels == 1,
                                             .panel = Config::kPanel,
                                             .parts = Config::kColumnParts,
                                             .cols_0 = Config::kCols0,
                                             .cols_1 = Config::kCols1};
  static constexpr bool kOwnsKeys = kTile.owns_keys();
  static constexpr int kOwned = kTile.owned();
  static constexpr int kStreamed = kTile.streamed();
  static constexpr bool kResident = kTile.resident;
  static constexpr int kPanel = Config::kPanel;  // columns of either pair in shared memory, where not resident

  // Threads are a grid of kThreadsY x kThreadsX; a warp is 8 wide and 4 high. A thread has kRows x kCols of the scores,
  // streamed by owned, and kOwnedRows x (its columns) of the gradients.
  static constexpr int kLanesX = 8;
  static constexpr int kThreadsX = Config::kThreadsX;
  static constexpr int kThreadsY = Config::kThreads / kThreadsX;
  static constexpr int kRows = kStreamed / kThreadsY;
  static constexpr int kCols = kOwned / kThreadsX;
  static constexpr int kOwnedRows = kOwned / kThreadsY;
  static constexpr int kStep = kThreadsX * kChunkBytes;  // between a thread's chunks of a row
  static_assert(kRows % 4 == 0 && kCols % 4 == 0 && kOwnedRows % 4 == 0 && kThreadsX % kLanesX == 0);
  using Place = ScorePlace<kOwnsKeys, 4 * kThreadsX>;

  // Columns of pair 0 and 1: those that products sum over, and those of the block's gradients.
  static constexpr int kHeadDims[2] = {Config::kHeadDim, Config::kHeadDimV};
  static constexpr int kDepths[2] = {kTile.depth_0(), kTile.depth_1()};
  static constexpr int kGradientCols[2] = {Config::kCols0, Config::kCols1};
  template <int kPair>
  static constexpr int kDims = kGradientCols[kPair] / kThreadsX;
  static constexpr bool kHasScoreTiles = kTile.has_ds();

  // Shared memory, in bytes.
  using ScoreTile = Fp32Tile<kOwned, kRows, 0>;                // kStreamed rows
  using Transposed = Fp32Tile<kOwned, 0, kTransposedPadding>;  // a row for each column of the tensor
  template <int kPair>
  using StreamedTile = Fp32Tile<kGradientCols[kPair], kRows, 0>;  // kStreamed rows
  using PanelTile = Fp32Tile<kPanel, kRows, 0>;                   // kStreamed rows
  static constexpr bool kHasRows[2] = {kTile.has_rows_0(), kTile.has_rows_1()};
  static constexpr int kDs = kTile.ds_begin();
  static constexpr int kP = kTile.p_begin();
  static constexpr int kRows0 = kTile.rows_0_begin();
  static constexpr int kRows1 = kTile.rows_1_begin();
  static constexpr int kPanelRows = kTile.panel_begin();
  static constexpr int kTransposed0 = kTile.transposed_0_begin();
  static constexpr int kTransposed1 = kTile.transposed_1_begin();
  static constexpr int kSaved = kTile.saved_begin();
  static constexpr int kLog2Sums = kTile.log2_sums_begin();
  static_assert(kTile.smem_bytes() == Config::kSmemBytes);
  static_assert(ScoreTile::kRowBytes == float_bytes(1, kOwned) && PanelTile::kRowBytes == float_bytes(1, kPanel) &&
                StreamedTile<0>::kRowBytes == float_bytes(1, Config::kCols0) &&
                StreamedTile<1>::kRowBytes == float_bytes(1, Config::kCols1) &&
                Transposed::kRowBytes == float_bytes(1, kOwned + kTransposedPadding));
  static_assert(kRows0 % kBankRowBytes == 0 && kRows1 % kBankRowBytes == 0 &&
                kPanelRows % kBankRowBytes == 0);  // the flips

  template <int kPair>
  static constexpr int kRowsAt = kPair == 0 ? kRows0 : kRows1;
  template <int kPair>
  static constexpr int kTransposedAt = kPair == 0 || !kResident ? kTransposed0 : kTransposed1;
};

// A thread's place in the grid: warps fill it row by row.
template <class Config, SimtGradient kGradient>
struct SimtThread {
  using Shape = SimtBackwardShape<Config, kGradient>;
  int x;
  int y;

  [[nodiscard]] static __device__ __forceinline__ SimtThread mine() {
    constexpr int kWarpsX = Shape::kThreadsX / Shape::kLanesX;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    return {warp % kWarpsX * Shape::kLanesX + lane % Shape::kLanesX, warp / kWarpsX * 4 + lane / Shape::kLanesX};
  }
  [[nodiscard]] __device__ __forceinline__ typename Shape::Place place() const {
    return {y * Shape::kRows, x * kChunkFloats};
  }
};

// The tensors of one query head, as a block's tiles see them.
template <class Config>
struct SimtHead {
  using Source = RowSource<Config>;
  const BackwardArgs& args;
  SequenceSpan span;
  uint32 head;
  uint32 head_k;

  // Rows of pair 0 or 1 from `row` on: of q and dout, or with kOfKeys of k and v.
  template <bool kOfKeys, int kPair>
  [[nodiscard]] __device__ __forceinline__ Source rows(int64 row) const {
    if constexpr (kOfKeys) {
      return Source::of(kPair == 0 ? args.k : args.v, kPair == 0 ? args.k_stride : args.v_stride, span.batch, head_k,
                        span.k_begin + row, span.seqlen_k - row, kPair == 0 ? Config::kHeadDim : Config::kHeadDimV);
    } else {
      return Source::of(kPair == 0 ? args.q : args.dout, kPair == 0 ? args.q_stride : args.dout_stride, span.batch,
                        head, span.q_begin + row, span.seqlen_q - row,
                        kPair == 0 ? Config::kHeadDim : Config::kHeadDimV);
    }
  }
};

// What belongs to rows [row, row + kBlockM), to shared memory.
template <class Config, SimtGradient kGradient>
__device__ __forceinline__ void load_saved(const SavedRow* saved, int64 row, int64 seqlen_q) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  auto* to = reinterpret_cast<SimtSavedRow*>(fp32_smem + Shape::kSaved);
  auto* log2_sums = reinterpret_cast<float*>(fp32_smem + Shape::kLog2Sums);
  for (int i = threadIdx.x; i < Config::kBlockM; i += Config::kThreads) {
    const SavedRow from = row + i < seqlen_q ? saved[row + i] : SavedRow{kInfinity, 0.0f, 0.0f};
    to[i] = {from.lse, from.delta};
    if constexpr (Config::kHasLseRounding) log2_sums[i] = from.log2_sum;
  }
}

// The owned tiles, where they stay.
template <class Config, SimtGradient kGradient>
__device__ __forceinline__ void load_owned(const SimtHead<Config>& head, int64 owned) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  if constexpr (Shape::kResident) {
    load_transposed<Config, typename Shape::Transposed, Shape::kOwned, Shape::kDepths[0]>(
        Shape::kTransposed0, head.template rows<Shape::kOwnsKeys, 0>(owned));
    load_transposed<Config, typename Shape::Transposed, Shape::kOwned, Shape::kDepths[1]>(
        Shape::kTransposed1, head.template rows<Shape::kOwnsKeys, 1>(owned));
  }
}

// The streamed rows that gradients are products with, columns of this block's part; where resident, all of both pairs.
// Returns whether this thread met nothing but finite numbers.
template <class Config, SimtGradient kGradient>
[[nodiscard]] __device__ __forceinline__ bool load_streamed(const SimtHead<Config>& head, int64 streamed, int part) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  FiniteWatch watch;
  if constexpr (Shape::kHasRows[0]) {
    load_rows<Config, typename Shape::template StreamedTile<0>, Shape::kStreamed, Shape::kGradientCols[0]>(
        Shape::kRows0, head.template rows<!Shape::kOwnsKeys, 0>(streamed).columns_from(part * Shape::kGradientCols[0]),
        watch);
  }
  if constexpr (Shape::kHasRows[1]) {
    load_rows<Config, typename Shape::template StreamedTile<1>, Shape::kStreamed, Shape::kGradientCols[1]>(
        Shape::kRows1, head.template rows<!Shape::kOwnsKeys, 1>(streamed).columns_from(part * Shape::kGradientCols[1]),
        watch);
  }
  return !watch.saw_other();
}

// product = streamed owned^T of a pair, for the thread's part of the tile.
template <class Config, SimtGradient kGradient, int kPair, int kM, int kN>
__device__ __forceinline__ void multiply_pair(float (&product)[kM][kN], const SimtHead<Config>& head, int64 streamed,
                                              int64 owned, const SimtThread<Config, kGradient>& me) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  if constexpr (Shape::kResident) {
    using StreamedTile = typename Shape::template StreamedTile<kPair>;
    multiply_rows<Shape::kDepths[kPair], StreamedTile, typename Shape::Transposed, Shape::kStep>(
        product, Shape::template kRowsAt<kPair> + StreamedTile::offset(me.y * Shape::kRows, 0),
        Shape::template kTransposedAt<kPair>, me.x * kChunkBytes);
  } else {
    using PanelTile = typename Shape::PanelTile;
    const auto rows = head.template rows<!Shape::kOwnsKeys, kPair>(streamed);
    const auto transposed = head.template rows<Shape::kOwnsKeys, kPair>(owned);
#pragma unroll 1
    for (int col = 0; col < Shape::kHeadDims[kPair]; col += Shape::kPanel) {
      FiniteWatch unused;
      __syncthreads();  // every warp has left the panel before
      load_rows<Config, PanelTile, Shape::kStreamed, Shape::kPanel>(Shape::kPanelRows, rows.columns_from(col), unused);
      load_transposed<Config, typename Shape::Transposed, Shape::kOwned, Shape::kPanel>(Shape::kTransposed0,
                                                                                        transposed.columns_from(col));
      __syncthreads();  // the panel is there
      multiply_rows<Shape::kPanel, PanelTile, typename Shape::Transposed, Shape::kStep>(
          product, Shape::kPanelRows + PanelTile::offset(me.y * Shape::kRows, 0), Shape::kTransposed0,
          me.x * kChunkBytes);
    }
  }
}

// A thread's numbers to a tile of scores in shared memory.
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void store_score_tile(int smem_offset, const float (&s)[kM][kN],
                                                 const SimtThread<Config, kGradient>& me) {
  using Shape = SimtBackwardShape<Config, kGradient>;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; j += kChunkFloats) {
      const int col = me.x * kChunkFloats + Shape::Place::step(j);
      *reinterpret_cast<float4*>(fp32_smem + smem_offset + Shape::ScoreTile::offset(me.y * Shape::kRows + i, col)) =
          make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
    }
  }
}

// What few rows want of their p: kNotSeen if lse is +inf, and a division by what p sums to if lse is coarse
// (lse_rounding.cuh).
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void mend_rows_of_large_lse(float (&p)[kM][kN], const SimtThread<Config, kGradient>& me) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  const auto place = me.place();
  const auto* saved = reinterpret_cast<const SimtSavedRow*>(fp32_smem + Shape::kSaved);
  float largest_lse = 0.0f;
#pragma unroll
  for (int n = 0; n < (Shape::kOwnsKeys ? kM : kN); ++n) {
    largest_lse = fmaxf(largest_lse, fabsf(saved[Shape::kOwnsKeys ? place.row(n, 0) : place.row(0, n)].lse));
  }
  if (largest_lse < kCoarseLse) return;
  const auto* log2_sums = reinterpret_cast<const float*>(fp32_smem + Shape::kLog2Sums);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const int row = place.row(i, j);
      if constexpr (Config::kHasLseRounding) {
        if (is_seen(p[i][j])) p[i][j] *= exp2_fast(-log2_sums[row]);
      }
      if (saved[row].lse == kInfinity) p[i][j] = kNotSeen;
    }
  }
}

// p before dropout, or kNotSeen. s holds q.k, then the result; slope as apply_rules gives it.
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void probabilities(float (&s)[kM][kN], float (&slope)[kM][kN],
                                              const TileRules<Config>& rules, const SimtThread<Config, kGradient>& me) {
  const auto place = me.place();
  const auto* saved = reinterpret_cast<const SimtSavedRow*>(fp32_smem + SimtBackwardShape<Config, kGradient>::kSaved);
  if (rules.template all_visible<Config::kBlockM, Config::kBlockN>()) {
    apply_rules<true>(rules, s, place, slope);
  } else {
    apply_rules<false>(rules, s, place, slope);
  }
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float above = s[i][j] - saved[place.row(i, j)].lse;
      s[i][j] = s[i][j] != -kInfinity ? exp2_fast(above * kLog2E) : kNotSeen;
    }
  }
  mend_rows_of_large_lse(s, me);
}

// What dropout leaves of p: a dropped entry is not seen, whatever p is.
[[nodiscard]] __device__ __forceinline__ float after_dropout(float p, bool kept, float scale) {
  return is_seen(p) && kept ? p * scale : kNotSeen;
}

// What dp starts from before dout v^T is added: dropout scales the sum before delta is taken off.
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void begin_gradients(float (&dp)[kM][kN], const SimtThread<Config, kGradient>& me) {
  const auto place = me.place();
  const auto* saved = reinterpret_cast<const SimtSavedRow*>(fp32_smem + SimtBackwardShape<Config, kGradient>::kSaved);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) dp[i][j] = Score<Config>::kDrops ? 0.0f : -saved[place.row(i, j)].delta;
  }
}

// p becomes ds, or stays kNotSeen. dp: begin_gradients() and dout v^T; scale: of entries that dropout keeps.
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void score_gradients(float (&p)[kM][kN], const float (&dp)[kM][kN], uint32 kept, float scale,
                                                const SimtThread<Config, kGradient>& me) {
  const auto place = me.place();
  const auto* saved = reinterpret_cast<const SimtSavedRow*>(fp32_smem + SimtBackwardShape<Config, kGradient>::kSaved);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      float gradient = dp[i][j];
      if constexpr (Score<Config>::kDrops) {
        gradient = ((kept >> (i * kN + j) & 1) != 0 ? gradient * scale : 0.0f) - saved[place.row(i, j)].delta;
      }
      if (is_seen(p[i][j])) p[i][j] = as_seen(p[i][j] * gradient);
    }
  }
}

// One tile: ds to its tile in shared memory, and for the gradient of v the probabilities after dropout. With kBias, ds
// (without the derivative of a transform) is left in ds. The streamed tiles and the saved rows are there.
template <class Config, SimtGradient kGradient, int kM, int kN>
__device__ __forceinline__ void gradient_tile(float (&ds)[kM][kN], const SimtHead<Config>& head,
                                              const ScoreRules<Config>& head_rules, const OptionArgs& options,
                                              int64 streamed, int64 owned, const SimtThread<Config, kGradient>& me) {
  using Shape = SimtBackwardShape<Config, kGradient>;
  const auto rules = head_rules.tile(Shape::kOwnsKeys ? streamed : owned, Shape::kOwnsKeys ? owned : streamed);
  float slope[kM][kN];
  uint32 kept = 0;  // bits as kept_bits gives them
  multiply_pair<Config, kGradient, 0>(ds, head, streamed, owned, me);
  probabilities(ds, slope, rules, me);
  if constexpr (Score<Config>::kDrops) kept = kept_bits<kM, kN>(rules, me.place());
  if constexpr (kGradient == SimtGradient::kKeysValues) {
    float p[kM][kN];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        p[i][j] = ds[i][j];
        if constexpr (Score<Config>::kDrops)
          p[i][j] = after_dropout(p[i][j], (kept >> (i * kN + j) & 1) != 0, options.dropout_scale);
      }
    }
    store_score_tile(Shape::kP, p, me);
  }
  if constexpr (Score<Config>::kTransforms && kGradient != SimtGradient::kBias) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (is_seen(ds[i][j])) ds[i][j] *= slope[i][j];
      }
    }
  }
  float dp[kM][kN];
  begin_gradients(dp, me);
  multiply_pair<Config, kGradient, 1>(dp, head, streamed, owned, me);
  score_gradients(ds, dp, kept, options.dropout_scale, me);
  if constexpr (Shape::kHasScoreTiles) store_score_tile(Shape::kDs, ds, me);
}

}  // namespace attend
