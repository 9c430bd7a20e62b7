// One tile of the backward pass. Computes p and the gradient of the scores from products of tiles of q, k, dout and v.
//
//   p = exp(s - lse)    ds = p * (drop(dout v^T) - delta)    delta = rowsum(dout * o) - dlse
//
// If lse of a row is coarse, p is divided by the sum of p over the row (lse_rounding.cuh).
#pragma once

#include "../attention/lse_rounding.cuh"
#include "../common/numbers.cuh"
#include "backward_load.cuh"
#include "guarded_product.cuh"

namespace attend {

// Computes product += streamed owned^T of a pair, for the thread's share of the tile.
template <int kPair, class Shape>
__device__ __forceinline__ void add_pair(typename Shape::Scores& product, const SimtHead<typename Shape::Kernel>& head,
                                         int64 streamed, int64 owned, const SimtThread<Shape>& me) {
  if constexpr (Shape::kResident) {
    using StreamedTile = typename Shape::template StreamedTile<kPair>;
    using Owned = Fp32Chunks<typename Shape::template TransposedTile<kPair>, Shape::kStep>;
    Fp32Rows<StreamedTile>{Shape::template kRowsAt<kPair> + StreamedTile::offset(me.y * Shape::kRows, 0)}.add_product(
        product, Owned{Shape::template kTransposedAt<kPair>, me.x * kChunkBytes});
  } else {
    using PanelTile = typename Shape::PanelTile;
    using Owned = Fp32Chunks<typename Shape::TransposedPanel, Shape::kStep>;
    const auto rows = head.template rows<!Shape::kOwnsKeys, kPair>(streamed);
    const auto transposed = head.template rows<Shape::kOwnsKeys, kPair>(owned);
#pragma unroll 1
    for (int col = 0; col < Shape::kHeadDims[kPair]; col += Shape::kPanel) {
      FiniteWatch unused;
      __syncthreads();  // waits until every warp has finished with the previous panel, which may then be overwritten
      load_rows<PanelTile>(Shape::kPanelRows, rows.columns_from(col), unused);
      load_transposed<typename Shape::TransposedPanel>(Shape::kTransposed0, transposed.columns_from(col));
      __syncthreads();  // waits until the panel is loaded; all warps may then read it
      Fp32Rows<PanelTile>{Shape::kPanelRows + PanelTile::offset(me.y * Shape::kRows, 0)}.add_product(
          product, Owned{Shape::kTransposed0, me.x * kChunkBytes});
    }
  }
}

// Stores a thread's share to a tile of scores in shared memory.
template <class Shape>
__device__ __forceinline__ void store_score_tile(int smem_offset, const typename Shape::Scores& s,
                                                 const SimtThread<Shape>& me) {
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; j += kChunkFloats) {
      const int col = me.x * kChunkFloats + Shape::Place::step(j);
      *reinterpret_cast<float4*>(fp32_smem + smem_offset + Shape::ScoreTile::offset(me.y * Shape::kRows + i, col)) =
          make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
    }
  }
}

// Returns the saved rows of the tile in shared memory.
template <class Shape>
[[nodiscard]] __device__ __forceinline__ const SimtSavedRow* tile_saved_rows() {
  return reinterpret_cast<const SimtSavedRow*>(fp32_smem + Shape::kSaved);
}

// Corrects p in rows with a large lse, which are few. If lse is +inf, p becomes kNotSeen. If lse is coarse, p is
// divided by the sum of p over the row (lse_rounding.cuh).
template <class Shape>
__device__ __forceinline__ void mend_rows_of_large_lse(typename Shape::Scores& p, const SimtThread<Shape>& me) {
  const auto place = me.place();
  const auto* saved = tile_saved_rows<Shape>();
  float largest_lse = 0.0f;
#pragma unroll
  for (int n = 0; n < (Shape::kOwnsKeys ? Shape::kRows : Shape::kCols); ++n) {
    largest_lse = fmaxf(largest_lse, fabsf(saved[Shape::kOwnsKeys ? place.row(n, 0) : place.row(0, n)].lse));
  }
  if (largest_lse < kCoarseLse) return;
  const auto* log2_sums = reinterpret_cast<const float*>(fp32_smem + Shape::kLog2Sums);
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      const int row = place.row(i, j);
      if constexpr (Shape::Kernel::kHasLseRounding) {
        if (is_seen(p[i][j])) p[i][j] *= exp2_fast(-log2_sums[row]);
      }
      if (saved[row].lse == kInfinity) p[i][j] = kNotSeen;
    }
  }
}

// Replaces q.k in s by p before dropout, or by kNotSeen. See GridRules::apply() for `slope`.
template <class Shape>
__device__ __forceinline__ void probabilities(typename Shape::Scores& s, typename Shape::Scores& slope,
                                              const TileRules<typename Shape::Kernel>& rules,
                                              const SimtThread<Shape>& me) {
  using Config = typename Shape::Kernel;
  const auto place = me.place();
  const auto* saved = tile_saved_rows<Shape>();
  const GridRules<Config, typename Shape::Place> grid = {rules, place};
  constexpr bool kOfTerms = Shape::kKind == SimtGradient::kTerms;
  if (rules.template all_visible<Config::kBlockM, Config::kBlockN>()) {
    grid.template apply<true, kOfTerms>(s, slope);
  } else {
    grid.template apply<false, kOfTerms>(s, slope);
  }
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      const float above = s[i][j] - saved[place.row(i, j)].lse;
      s[i][j] = s[i][j] != -kInfinity ? exp2_fast(above * kLog2E) : kNotSeen;
    }
  }
  mend_rows_of_large_lse(s, me);
}

// Returns p after dropout. A dropped entry becomes kNotSeen.
[[nodiscard]] __device__ __forceinline__ float after_dropping(float p, bool kept, float scale) {
  return is_seen(p) && kept ? p * scale : kNotSeen;
}

// Initialises dp, to which dout v^T is added later. The initial value is -delta. With dropout it is 0, because dropout
// scales the sum before delta is subtracted.
template <class Shape>
__device__ __forceinline__ void begin_gradients(typename Shape::Scores& dp, const SimtThread<Shape>& me) {
  const auto place = me.place();
  const auto* saved = tile_saved_rows<Shape>();
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      dp[i][j] = Score<typename Shape::Kernel>::kDrops ? 0.0f : -saved[place.row(i, j)].delta;
    }
  }
}

// Replaces p by ds, except where p is kNotSeen. dp must hold the value of begin_gradients() plus dout v^T. `scale` is
// the factor of entries that are not dropped.
template <class Shape>
__device__ __forceinline__ void score_gradients(typename Shape::Scores& p, const typename Shape::Scores& dp,
                                                uint32 kept, float scale, const SimtThread<Shape>& me) {
  const auto place = me.place();
  const auto* saved = tile_saved_rows<Shape>();
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      float gradient = dp[i][j];
      if constexpr (Score<typename Shape::Kernel>::kDrops) {
        const float scaled = is_kept(kept, i * Shape::kCols + j) ? gradient * scale : 0.0f;
        gradient = scaled - saved[place.row(i, j)].delta;
      }
      if (is_seen(p[i][j])) p[i][j] = as_seen(times_slope<typename Shape::Kernel>(gradient, p[i][j]));
    }
  }
}

// Stores p after dropout to its tile in shared memory.
template <class Shape>
__device__ __forceinline__ void store_kept(const typename Shape::Scores& p, uint32 kept, float scale,
                                           const SimtThread<Shape>& me) {
  typename Shape::Scores left;
#pragma unroll
  for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kCols; ++j) {
      left[i][j] = p[i][j];
      if constexpr (Score<typename Shape::Kernel>::kDrops)
        left[i][j] = after_dropping(left[i][j], is_kept(kept, i * Shape::kCols + j), scale);
    }
  }
  store_score_tile(Shape::kP, left, me);
}

// Computes the input scores of the custom score function from a tile of products. Stores them to the tile of p in
// shared memory.
template <class Shape>
__device__ __forceinline__ void store_own_scores(const typename Shape::Scores& products,
                                                 const TileRules<typename Shape::Kernel>& rules,
                                                 const SimtThread<Shape>& me) {
  using Config = typename Shape::Kernel;
  const auto place = me.place();
  const GridRules<Config, typename Shape::Place> grid = {rules, place};
  typename Shape::Scores s;
  if (rules.template all_visible<Config::kBlockM, Config::kBlockN>()) {
    grid.template own_scores<true>(s, products);
  } else {
    grid.template own_scores<false>(s, products);
  }
  store_score_tile(Shape::kP, s, me);
}

// Returns whether ds has a slope as a factor. The slope is the derivative of a score with respect to scale q.k or, for
// kTerms, with respect to the bias.
template <class Shape>
[[nodiscard]] __device__ __forceinline__ constexpr bool has_slopes() {
  using Config = typename Shape::Kernel;
  // For kCaptures, ds is the gradient of the custom function's value.
  if constexpr (Shape::kKind == SimtGradient::kCaptures) return false;
  if constexpr (Shape::kKind == SimtGradient::kTerms) return Score<Config>::kIsCustomWithSlope;
  return Score<Config>::kHasSlopes;
}

// Processes one tile. The streamed tiles and the saved rows must be loaded. Stores ds to its tile in shared memory. If
// v has a gradient, also stores p after dropout. For kTerms, `ds` receives ds without the derivative of the transform.
// For kCaptures, the tile of p receives the input scores of the custom score function.
template <class Shape>
__device__ __forceinline__ void gradient_tile(typename Shape::Scores& ds, const SimtHead<typename Shape::Kernel>& head,
                                              const ScoreRules<typename Shape::Kernel>& head_rules,
                                              const OptionArgs& options, int64 streamed, int64 owned,
                                              const SimtThread<Shape>& me) {
  using Config = typename Shape::Kernel;
  const auto rules = head_rules.tile(Shape::kOwnsKeys ? streamed : owned, Shape::kOwnsKeys ? owned : streamed);
  typename Shape::Scores slope;
  uint32 kept = 0;
  add_pair<0>(ds, head, streamed, owned, me);
  if constexpr (Shape::kKind == SimtGradient::kCaptures) store_own_scores(ds, rules, me);
  probabilities(ds, slope, rules, me);
  if constexpr (Score<Config>::kDrops) {
    const auto place = me.place();
    kept = GridRules<Config, typename Shape::Place>{rules, place}.template kept_bits<Shape::kRows, Shape::kCols>();
  }
  if constexpr (Shape::kKind == SimtGradient::kKeysValues) store_kept(ds, kept, kept_scale<Config>(options), me);
  if constexpr (has_slopes<Shape>()) {
#pragma unroll
    for (int i = 0; i < Shape::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kCols; ++j) {
        if (is_seen(ds[i][j])) ds[i][j] = times_slope<Config>(ds[i][j], slope[i][j]);
      }
    }
  }
  typename Shape::Scores dp;
  begin_gradients(dp, me);
  add_pair<1>(dp, head, streamed, owned, me);
  score_gradients(ds, dp, kept, kept_scale<Config>(options), me);
  if constexpr (Shape::kHasScoreTiles) store_score_tile(Shape::kDs, ds, me);
}

}  // namespace attend
