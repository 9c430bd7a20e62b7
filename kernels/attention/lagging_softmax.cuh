// An online softmax whose m may be less than the row maximum, so that earlier sums are seldom rescaled.
//
// The number m that is subtracted from a row's scores need not be their maximum, if l and o are relative to the same m
// (online_softmax.cuh). So m stays unchanged until a score exceeds it by more than kMaxLag.
// Source: FlashAttention-4 (2025).
#pragma once

#include "online_softmax.cuh"

namespace attend {

// Largest power of two by which a score may exceed m. p stays below 2^8, where its relative rounding error is the same
// as below 1.
constexpr float kMaxLag = 8.0f;

// Raises m of all rows of a warp, and rescales l and o, if the scores of any row exceed its m by more than kMaxLag.
// Rows stands for 16 rows, and has the members s, o and softmax. All lanes of the warp must call it.
template <int kTiles, class Rows>
__device__ __forceinline__ void raise_maxima(Rows (&tile)[kTiles], float scale_log2) {
  float tile_max[kTiles][kRowsOfThread];
  bool has_outgrown = false;
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      tile_max[r][h] = tile[r].softmax.in_units(quad_max(thread_row_max(tile[r].s, h)), scale_log2);
      has_outgrown |= tile[r].softmax.outgrown(h, tile_max[r][h], scale_log2) > kMaxLag;
    }
  }
  if (!__any_sync(kAllLanes, has_outgrown)) return;
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    float rescale[kRowsOfThread];
#pragma unroll
    for (int h = 0; h < kRowsOfThread; ++h) {
      rescale[h] = tile[r].softmax.raise_row(h, tile_max[r][h], scale_log2);
    }
    scale_rows(tile[r].o, rescale);
  }
}

}  // namespace attend
