// Register-tiled products of float32 tiles in shared memory, and the asynchronous copies that bring the tiles.
//
// A tile is kRows rows of kCols floats, kCols a multiple of 32, in 16-byte chunks. A thread owns kRun neighbouring rows
// of it, so at each step the lanes of a warp read one chunk of rows that lie kRun apart: all in the same banks. Chunk c
// of row r is therefore kept in place c ^ (r / kRun % 8): eight such rows then fill the 32 banks. A row starts at a
// multiple of 128 bytes, so the flip acts on bits 4 to 6 of an address alone and one XOR serves all rows of a thread.
// Offsets are in bytes from the start of dynamic shared memory.
#pragma once

#include "portable.cuh"

namespace attend {

extern __shared__ __align__(1024) unsigned char fp32_smem[];

constexpr int kChunkFloats = 4;  // 16 bytes: the widest load
constexpr int kChunkBytes = 16;
constexpr int kFlipBytes = 128;  // the places that swizzling permutes: 8 chunks

[[nodiscard]] __device__ __forceinline__ float4 load_chunk(int offset) {
  return *reinterpret_cast<const float4*>(fp32_smem + offset);
}

[[nodiscard]] __device__ __forceinline__ float element(const float4& chunk, int i) {
  return i == 0 ? chunk.x : i == 1 ? chunk.y : i == 2 ? chunk.z : chunk.w;
}

// Where the tiles' chunks are. kRun = 0: not swizzled.
template <int kCols, int kRun>
struct Fp32Tile {
  static_assert(kCols % 32 == 0);
  static constexpr int kRowBytes = kCols * 4;

  [[nodiscard]] static __device__ __forceinline__ int flip(int row) {
    if constexpr (kRun == 0) return 0;
    return row / (kRun == 0 ? 1 : kRun) % 8 * kChunkBytes;
  }
  [[nodiscard]] static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + (chunk * kChunkBytes ^ flip(row));
  }
};

// Bytes beyond `bytes` of the destination become zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async(int smem_offset, const float* gmem, bool exists) {
  const auto to = static_cast<uint32>(__cvta_generic_to_shared(fp32_smem + smem_offset));
  const int source_bytes = exists ? kBytes : 0;
  if constexpr (kBytes == kChunkBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gmem), "r"(source_bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(gmem), "r"(source_bytes) : "memory");
  }
}

// Waits for every copy that this thread has started. Other threads may read them after the next barrier.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Starts the copies of rows 0 .. min(kRows, num_rows) - 1 of a tensor; further rows and columns from kHeadDim to kCols
// become zeros. num_rows >= 1. A thread copies chunk t % 8 of every panel of 8 chunks in the rows t / 8 + i * kRowStep:
// these differ in bits of the row number that t / 8 leaves 0, so their flips differ by a constant XOR.
template <class Config, int kRows, int kCols, int kRun>
__device__ __forceinline__ void copy_tile_async(int smem_offset, const float* gmem, int64 row_stride, int64 num_rows) {
  using Tile = Fp32Tile<kCols, kRun>;
  const int rows_left = static_cast<int>(min(num_rows, int64{kRows}));
  if constexpr (Config::kAligned) {
    constexpr int kRowStep = Config::kThreads / 8;
    static_assert(kRows % kRowStep == 0 && (kRowStep & (kRowStep - 1)) == 0);
    const int first_row = threadIdx.x / 8;
    const int first_chunk = threadIdx.x % 8;
    const int place = smem_offset + Tile::offset(first_row, first_chunk);
    const float* source = gmem + first_row * row_stride + first_chunk * kChunkFloats;
#pragma unroll
    for (int row = 0; row < kRows; row += kRowStep) {
#pragma unroll
      for (int panel = 0; panel < kCols; panel += kFlipBytes / 4) {
        const bool exists = first_row + row < rows_left &&
                            (Config::kHeadDim == kCols || panel + first_chunk * kChunkFloats < Config::kHeadDim);
        copy_async<kChunkBytes>((place ^ Tile::flip(row)) + row * Tile::kRowBytes + panel * 4, source + panel, exists);
      }
      source += kRowStep * row_stride;
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * kCols; i += Config::kThreads) {
      const int row = i / kCols;
      const int col = i % kCols;
      const bool exists = row < rows_left && col < Config::kHeadDim;
      const int place = smem_offset + Tile::offset(row, col / kChunkFloats) + col % kChunkFloats * 4;
      copy_async<4>(place, exists ? gmem + row * row_stride + col : gmem, exists);
    }
  }
}

// acc[i][j] += sum over c of a[i][c] * b[j][c]: rows of two tiles of kCols columns.
// a and b are the offsets of the thread's first rows, with their flips.
template <int kM, int kN, int kCols>
__device__ __forceinline__ void multiply_rows(float (&acc)[kM][kN], int a, int b) {
#pragma unroll 2
  for (int flip = 0; flip < kFlipBytes; flip += kChunkBytes) {
#pragma unroll
    for (int panel = 0; panel < kCols * 4; panel += kFlipBytes) {
      float4 b_frag[kN];
#pragma unroll
      for (int j = 0; j < kN; ++j) b_frag[j] = load_chunk((b ^ flip) + j * kCols * 4 + panel);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const float4 a_frag = load_chunk((a ^ flip) + i * kCols * 4 + panel);
#pragma unroll
        for (int c = 0; c < kChunkFloats; ++c) {
#pragma unroll
          for (int j = 0; j < kN; ++j) acc[i][j] = fmaf(element(a_frag, c), element(b_frag[j], c), acc[i][j]);
        }
      }
    }
  }
}

// acc[i][..] += a * b: one row of an outer product. Every other row goes backwards, so that each multiplication shares
// an operand with the one before: a register bank gives one operand a clock, and a shared one need not be read again.
template <int kM, int kN>
__device__ __forceinline__ void multiply_outer(float (&acc)[kM][kN], int i, float a, const float4 (&b)[kN / 4]) {
#pragma unroll
  for (int step = 0; step < kN; ++step) {
    const int j = i % 2 == 0 ? step : kN - 1 - step;
    acc[i][j] = fmaf(a, element(b[j / 4], j % 4), acc[i][j]);
  }
}

// The chunks of one row of b that belong to a thread: kStep bytes apart.
template <int kN, int kStep>
__device__ __forceinline__ void load_row(float4 (&b_frag)[kN / 4], int b) {
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) b_frag[j] = load_chunk(b + j * kStep);
}

// acc[i][..] += sum over r of a[i][r] * b[r][..]: rows of a times the matrix b of kDepth rows.
// a: offset of the thread's first row with its flip, rows of kDepth columns. b: offset of the matrix; b_chunk: that of
// the thread's first chunk in a row; its chunks are kStep bytes apart, a multiple of kFlipBytes. b is swizzled by runs
// of kRun.
template <int kM, int kN, int kDepth, int kCols, int kRun, int kStep>
__device__ __forceinline__ void multiply_matrix(float (&acc)[kM][kN], int a, int b, int b_chunk) {
  using Tile = Fp32Tile<kCols, kRun>;
#pragma unroll 1
  for (int panel = 0; panel < kDepth * 4; panel += kFlipBytes) {
#pragma unroll 2
    for (int flip = 0; flip < kFlipBytes; flip += kChunkBytes) {
      float4 a_frag[kM];
#pragma unroll
      for (int i = 0; i < kM; ++i) a_frag[i] = load_chunk((a ^ flip) + panel + i * kDepth * 4);
#pragma unroll
      for (int r = 0; r < kChunkFloats; ++r) {
        const int row = (panel + flip) / 4 + r;
        float4 b_frag[kN / 4];
        const int b_flip = kRun == kChunkFloats ? flip : Tile::flip(row);
        load_row<kN, kStep>(b_frag, b + row * Tile::kRowBytes + (b_chunk ^ b_flip));
#pragma unroll
        for (int i = 0; i < kM; ++i) multiply_outer<kM, kN>(acc, i, element(a_frag[i], r), b_frag);
      }
    }
  }
}

// acc[i][..] += sum over r of a[r][i] * b[r][..]: columns of a times the matrix b, both of kDepth rows in runs of kRun.
// a_chunk: offset in a row of the thread's first column, a multiple of kM floats; else as above.
template <int kM, int kN, int kDepth, int kColsA, int kColsB, int kRun, int kStep>
__device__ __forceinline__ void multiply_columns(float (&acc)[kM][kN], int a, int a_chunk, int b, int b_chunk) {
  static_assert(kM % kChunkFloats == 0);
#pragma unroll 1
  for (int run = 0; run < kDepth / kRun; ++run) {
    const int flip = run % 8 * kChunkBytes;
    const int b_run = b + run * kRun * kColsB * 4 + (b_chunk ^ flip);
    const int a_run = a + run * kRun * kColsA * 4;
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      float4 b_frag[kN / 4];
      load_row<kN, kStep>(b_frag, b_run + r * kColsB * 4);
#pragma unroll
      for (int i = 0; i < kM; i += kChunkFloats) {
        const float4 a_frag = load_chunk(a_run + ((a_chunk + i * 4) ^ flip) + r * kColsA * 4);
#pragma unroll
        for (int c = 0; c < kChunkFloats; ++c) multiply_outer<kM, kN>(acc, i + c, element(a_frag, c), b_frag);
      }
    }
  }
}

// 2^x, with a relative error below 2^-22; results below 2^-126 become 0.
[[nodiscard]] __device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attend
