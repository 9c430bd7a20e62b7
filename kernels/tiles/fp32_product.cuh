// Products of float32 tiles in shared memory. Each thread computes a tile of sums in registers.
//
// A product sums over the rows of b. Each step uses one row of b, which is a vector along the columns of the result. It
// also uses one number of a for each of the thread's rows. So every multiplication reads an accumulator, a number of b,
// and a number of a that the next multiplications reuse. Each of the two register banks delivers one operand a clock.
// The accumulator and the number of b come from different banks. If products summed along the rows of a and b instead,
// the two numbers would come from the same bank.
//
//   Fp32Columns<ATile>{a, a_col}.add_product(acc, Fp32Chunks<BTile, kStep>{b, b_col});   // acc += a^T b
//   Fp32Rows<ATile>{a}.add_product(acc, Fp32Chunks<BTile, kStep>{b, b_col});             // acc += a b
#pragma once

#include "extents.cuh"
#include "fp32_tile.cuh"

namespace attend {

// Computes acc[i][j] += a * b[j] for all j, which is one row of an outer product. In odd rows, j descends, so that each
// multiplication shares an operand with the previous one.
template <int kM, int kN>
__device__ __forceinline__ void multiply_row(float (&acc)[kM][kN], int i, float a, const float (&b)[kN]) {
#pragma unroll
  for (int step = 0; step < kN; ++step) {
    const int j = i % 2 == 0 ? step : kN - 1 - step;
    acc[i][j] = fmaf(a, b[j], acc[i][j]);
  }
}

// Right side of a product: a thread's columns of a tile, as chunks that are kStep bytes apart in each row.
template <class TileOfRows, int kStep>
struct Fp32Chunks {
  using Tile = TileOfRows;
  int tile;  // offset of the tile, in bytes
  int col;   // offset of the thread's first column in a row, in bytes

  template <int kN>
  __device__ __forceinline__ void load(float (&numbers)[kN], int row) const {
    load_numbers<kN, kStep>(numbers, tile + row * Tile::kRowBytes + (col ^ Tile::flip(row)));
  }
  // Loads a row, given flip = Tile::flip(row), which several rows have in common.
  template <int kN>
  __device__ __forceinline__ void load(float (&numbers)[kN], int row, int flip) const {
    load_numbers<kN, kStep>(numbers, tile + row * Tile::kRowBytes + (col ^ flip));
  }
};

// Left side of a product with the transpose of a tile: a thread's neighbouring columns of this tile.
template <class Tile>
struct Fp32Columns {
  int tile;  // offset of the tile, in bytes
  int col;   // offset of the thread's first column in a row, in bytes

  // Computes acc[i][j] += sum over rows r of a[r][i] * b[r][j].
  template <class Sums, class Right>
  __device__ __forceinline__ void add_product(Sums& acc, const Right& b) const {
    constexpr int kM = kRowsOf<Sums>;
    static_assert(Tile::kRun == Right::Tile::kRun && Tile::kRows == Right::Tile::kRows);
    constexpr int kRun = Tile::kRun == 0 ? 8 : Tile::kRun;
    static_assert(Tile::kRows % kRun == 0);
#pragma unroll 1
    for (int run = 0; run < Tile::kRows; run += kRun) {
      const int flip = Tile::flip(run);
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        float a_frag[kM], b_frag[kColumnsOf<Sums>];
        constexpr int kPart = kM < kChunkFloats ? kM : kChunkFloats;
#pragma unroll
        for (int i = 0; i < kM; i += kPart) {
          float part[kPart];
          load_numbers<kPart, 0>(part, tile + (run + r) * Tile::kRowBytes + ((col + i * 4) ^ flip));
#pragma unroll
          for (int c = 0; c < kPart; ++c) a_frag[i + c] = part[c];
        }
        b.load(b_frag, run + r, flip);
#pragma unroll
        for (int i = 0; i < kM; ++i) multiply_row(acc, i, a_frag[i], b_frag);
      }
    }
  }
};

// Left side of a product: a thread's neighbouring rows of a tile.
template <class Tile>
struct Fp32Rows {
  int first;  // Tile::offset() of the first row, including its flip

  // Computes acc[i][j] += sum over the rows r of b of a[i][r] * b[r][j].
  template <class Sums, class Right>
  __device__ __forceinline__ void add_product(Sums& acc, const Right& b) const {
    constexpr int kM = kRowsOf<Sums>;
    static_assert(Right::Tile::kRows % (2 * kChunkFloats) == 0);
#pragma unroll 2
    for (int row = 0; row < Right::Tile::kRows; row += kChunkFloats) {
      const int a_bytes = row * 4;
      const int a_chunk = (first ^ (a_bytes % kBankRowBytes)) + a_bytes / kBankRowBytes * kBankRowBytes;
      float a_frag[kM][kChunkFloats];
#pragma unroll
      for (int i = 0; i < kM; ++i) load_numbers<kChunkFloats, 0>(a_frag[i], a_chunk + i * Tile::kRowBytes);
#pragma unroll
      for (int r = 0; r < kChunkFloats; ++r) {
        float b_frag[kColumnsOf<Sums>];
        b.load(b_frag, row + r);
#pragma unroll
        for (int i = 0; i < kM; ++i) multiply_row(acc, i, a_frag[i][r], b_frag);
      }
    }
  }
};

}  // namespace attend
