// Products of tiles that contain NaN or infinities in places that some rows do not see.
//
// In a matrix product, an unseen entry is multiplied by 0, and 0 * NaN is NaN. So unseen entries are marked: their
// probability, or the gradient of their score, is -0. No other entry is -0. The loads detect whether all numbers of a
// tile are finite. If so, the ordinary product is correct, because -0 adds nothing. All other tiles are rare. They use
// a product that skips marked entries.
#pragma once

#include "../tiles/fp32_product.cuh"

namespace attend {

constexpr float kNotSeen = -0.0f;

[[nodiscard]] __device__ __forceinline__ bool is_seen(float number) {
  return __float_as_uint(number) != 0x80000000u;
}

// Returns the value of a seen entry, in which -0 becomes +0.
[[nodiscard]] __device__ __forceinline__ float as_seen(float value) {
  return value + 0.0f;
}

// A thread's columns of a tile with marked entries.
template <class Tile>
struct MarkedColumns {
  int tile;  // offset of the tile, in bytes
  int col;   // offset of the thread's first column in a row, in bytes

  // Computes acc[i][j] += sum over rows r of a[r][i] * b[r][j]. If b is not finite, marked entries of a are skipped.
  template <class Sums, class Right>
  __device__ __forceinline__ void add_product(Sums& acc, const Right& b, bool b_is_finite) const {
    static_assert(kRowsOf<Sums> % kChunkFloats == 0);
    if (b_is_finite) {
      Fp32Columns<Tile>{tile, col}.add_product(acc, b);
    } else {
      add_seen(acc, b);
    }
  }

 private:
  // Used in the rare case, and not optimised.
  template <class Sums, class Right>
  __device__ __forceinline__ void add_seen(Sums& acc, const Right& b) const {
#pragma unroll 1
    for (int r = 0; r < Tile::kRows; ++r) {
      float b_frag[kColumnsOf<Sums>];
      b.load(b_frag, r);
#pragma unroll
      for (int i = 0; i < kRowsOf<Sums>; i += kChunkFloats) {
        float a_frag[kChunkFloats];
        load_numbers<kChunkFloats, 0>(a_frag, tile + r * Tile::kRowBytes + ((col + i * 4) ^ Tile::flip(r)));
#pragma unroll
        for (int c = 0; c < kChunkFloats; ++c) {
          if (is_seen(a_frag[c])) multiply_row(acc, i + c, a_frag[c], b_frag);
        }
      }
    }
  }
};

}  // namespace attend
