// Masks and negates a thread's tile of float32 scores. Rung 08 uses it.
#pragma once

#include "../../attention/key_range.cuh"
#include "../../common/numbers.cuh"
#include "../../common/portable.cuh"
#include "../../tiles/extents.cuh"

namespace attend {

// Positions of a thread's keys in a tile. Key j lies j % 4 * kInChunk + j / 4 * kOfChunks keys behind the thread's
// first key.
template <int kInChunk, int kOfChunks>
struct KeySteps {
  [[nodiscard]] static __device__ __forceinline__ constexpr int key(int j) {
    return j % 4 * kInChunk + j / 4 * kOfChunks;
  }
};

template <int kM, int kN>
__device__ __forceinline__ void negate(float (&s)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) s[i][j] = -s[i][j];
  }
}

// Sets the scores of keys that their row does not see to -inf. `first_key` is the thread's first key, relative to
// tile_key. Steps is a KeySteps, and s is float[rows][keys].
template <class Steps, class Scores>
__device__ __forceinline__ void mask_scores(Scores& s, const WindowMask& mask, int64 first_row, int64 tile_key,
                                            int first_key) {
#pragma unroll
  for (int i = 0; i < kRowsOf<Scores>; ++i) {
    const int64 end = mask.row(first_row + i).end - tile_key;
    const int seen = static_cast<int>(max(int64{0}, min(kBeyondTile, end))) - first_key;
#pragma unroll
    for (int j = 0; j < kColumnsOf<Scores>; ++j) {
      if (Steps::key(j) >= seen) s[i][j] = -kInfinity;
    }
  }
}

}  // namespace attend
