// Products of tiles that hold NaN or infinities in places that some rows do not see.
//
// In a product of tiles an entry that a row does not see is multiplied by 0, and 0 * NaN is NaN. So such entries are
// marked: their probability, or the gradient of their score, is -0, and no other entry is -0. If all numbers of a tile
// are finite, and the loads know that, nothing more is needed: -0 adds nothing. The rare other tiles take a product
// that leaves marked entries out.
#pragma once

#include "../tiles/fp32_product.cuh"

namespace attend {

constexpr float kNotSeen = -0.0f;

[[nodiscard]] __device__ __forceinline__ bool is_seen(float number) {
  return __float_as_uint(number) != 0x80000000u;
}

// value as an entry that is seen: -0 becomes +0.
[[nodiscard]] __device__ __forceinline__ float as_seen(float value) {
  return value + 0.0f;
}

// A thread's columns of a tile with marked entries.
template <class Tile>
struct MarkedColumns {
  int tile;  // offset
  int col;   // of the thread's first column in a row

  // acc[i][j] += sum over rows r of a[r][i] * b[r][j]; if b is not finite, without marked entries of a.
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
  // For the exception, not for speed.
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
