// Register-tiled products of float32 tiles in shared memory, and the asynchronous copies that bring the tiles.
//
// A product sums over the rows of b: each step takes one row of b, a vector along the result's columns, and for each of
// the thread's rows one number of a. So every multiplication reads an accumulator, a number of b, and a number of a
// that the next ones use again: one operand from each of the two register banks, which give one each in a clock.
// Summing vectors of a against vectors of b instead (rows of both) makes both operands come from the same bank.
//
// A tile is rows of kCols floats in chunks of 16 bytes, all offsets are in bytes from the start of dynamic shared
// memory.
#pragma once

#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

extern __shared__ __align__(1024) unsigned char fp32_smem[];

constexpr int kChunkFloats = kChunkBytes / 4;
constexpr int kBankRowBytes = 128;  // all banks once: 8 chunks

// Where the chunks of a tile are, so that neither its readers nor its writers meet in a bank.
// kPad floats behind each row shift the banks from row to row; or, where several lanes read the same columns of rows
// that lie kRun apart, chunk c of row r is kept in place c ^ (r / kRun % 8). Rows then start at multiples of 128 bytes:
// the flip acts on bits 4 to 6 of an address alone, and one XOR serves kRun rows.
template <int kCols, int kRunOfRows, int kPad>
struct Fp32Tile {
  static_assert(kRunOfRows == 0 || (kCols % 32 == 0 && kPad == 0));
  static constexpr int kRun = kRunOfRows;  // 0: not swizzled
  static constexpr int kRowBytes = (kCols + kPad) * 4;

  [[nodiscard]] static __device__ __forceinline__ int flip(int row) {
    if constexpr (kRun == 0) {
      return 0;
    } else {
      return row / kRun % 8 * kChunkBytes;
    }
  }
  [[nodiscard]] static __device__ __forceinline__ int offset(int row, int col) {
    return row * kRowBytes + (col / kChunkFloats * kChunkBytes ^ flip(row)) + col % kChunkFloats * 4;
  }
};

// kN numbers of a row: a pair, or chunks that lie kStep bytes apart.
template <int kN, int kStep>
__device__ __forceinline__ void load_numbers(float (&numbers)[kN], int offset) {
  static_assert(kN == 2 || kN % kChunkFloats == 0);
  if constexpr (kN == 2) {
    const float2 pair = *reinterpret_cast<const float2*>(fp32_smem + offset);
    numbers[0] = pair.x, numbers[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kN; i += kChunkFloats) {
      const float4 chunk = *reinterpret_cast<const float4*>(fp32_smem + offset + i / kChunkFloats * kStep);
      numbers[i] = chunk.x, numbers[i + 1] = chunk.y, numbers[i + 2] = chunk.z, numbers[i + 3] = chunk.w;
    }
  }
}

// acc[i][..] += a * b: one row of an outer product. Every other row goes backwards, so that each multiplication shares
// an operand with the one before.
template <int kM, int kN>
__device__ __forceinline__ void multiply_row(float (&acc)[kM][kN], int i, float a, const float (&b)[kN]) {
#pragma unroll
  for (int step = 0; step < kN; ++step) {
    const int j = i % 2 == 0 ? step : kN - 1 - step;
    acc[i][j] = fmaf(a, b[j], acc[i][j]);
  }
}

// acc[i][j] += sum over r < kDepth of a[r][i] * b[r][j].
// a, b: offsets of the tiles; a_col, b_col: of the thread's first columns in a row. The thread's columns of a are
// neighbours; those of b come in chunks kStep bytes apart.
template <int kDepth, class ATile, class BTile, int kStep, int kM, int kN>
__device__ __forceinline__ void multiply_columns(float (&acc)[kM][kN], int a, int a_col, int b, int b_col) {
  static_assert(ATile::kRun == BTile::kRun);
  constexpr int kRun = ATile::kRun == 0 ? 8 : ATile::kRun;
  static_assert(kDepth % kRun == 0);
#pragma unroll 1
  for (int run = 0; run < kDepth; run += kRun) {
    const int flip = ATile::flip(run);
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      float a_frag[kM], b_frag[kN];
      constexpr int kPart = kM < kChunkFloats ? kM : kChunkFloats;
#pragma unroll
      for (int i = 0; i < kM; i += kPart) {
        float part[kPart];
        load_numbers<kPart, 0>(part, a + (run + r) * ATile::kRowBytes + ((a_col + i * 4) ^ flip));
#pragma unroll
        for (int c = 0; c < kPart; ++c) a_frag[i + c] = part[c];
      }
      load_numbers<kN, kStep>(b_frag, b + (run + r) * BTile::kRowBytes + (b_col ^ flip));
#pragma unroll
      for (int i = 0; i < kM; ++i) multiply_row<kM, kN>(acc, i, a_frag[i], b_frag);
    }
  }
}

// acc[i][j] += sum over r < kDepth of a[i][r] * b[r][j].
// a: offset of the first of the thread's rows, which are neighbours, with its flip; else as above.
template <int kDepth, class ATile, class BTile, int kStep, int kM, int kN>
__device__ __forceinline__ void multiply_rows(float (&acc)[kM][kN], int a, int b, int b_col) {
  static_assert(kDepth % (2 * kChunkFloats) == 0);
#pragma unroll 2
  for (int row = 0; row < kDepth; row += kChunkFloats) {
    const int a_bytes = row * 4;
    const int a_chunk = (a ^ (a_bytes % kBankRowBytes)) + a_bytes / kBankRowBytes * kBankRowBytes;
    float a_frag[kM][kChunkFloats];
#pragma unroll
    for (int i = 0; i < kM; ++i) load_numbers<kChunkFloats, 0>(a_frag[i], a_chunk + i * ATile::kRowBytes);
#pragma unroll
    for (int r = 0; r < kChunkFloats; ++r) {
      float b_frag[kN];
      load_numbers<kN, kStep>(b_frag, b + (row + r) * BTile::kRowBytes + (b_col ^ BTile::flip(row + r)));
#pragma unroll
      for (int i = 0; i < kM; ++i) multiply_row<kM, kN>(acc, i, a_frag[i][r], b_frag);
    }
  }
}

// Starts a copy of 4 or 16 bytes. What does not exist is not read: zeros take its place.
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

// Starts the copies of the rows of a tensor, kRows x kHeadDim, to a tile of kRows x kCols; rows from num_rows on and
// columns from kHeadDim on become zeros. A thread copies chunk t % 8 of every panel in the rows t / 8 + i * kRowStep:
// these differ in bits of the row number that t / 8 leaves 0, so their flips differ by a constant XOR.
template <class Config, class Tile, int kRows, int kCols>
__device__ __forceinline__ void copy_tile_async(int smem_offset, const float* gmem, int64 row_stride, int64 num_rows) {
  const int rows_left = static_cast<int>(min(num_rows, int64{kRows}));
  if constexpr (Config::kAligned) {
    constexpr int kRowStep = Config::kThreads / 8;
    static_assert(kRows % kRowStep == 0 && (kRowStep & (kRowStep - 1)) == 0);
    const int first_row = threadIdx.x / 8;
    const int first_col = threadIdx.x % 8 * kChunkFloats;
    const int place = smem_offset + Tile::offset(first_row, first_col);
    const float* source = gmem + first_row * row_stride + first_col;
#pragma unroll
    for (int row = 0; row < kRows; row += kRowStep) {
#pragma unroll
      for (int panel = 0; panel < kCols; panel += kBankRowBytes / 4) {
        const bool exists =
            first_row + row < rows_left && (Config::kHeadDim == kCols || panel + first_col < Config::kHeadDim);
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
      copy_async<4>(smem_offset + Tile::offset(row, col), exists ? gmem + row * row_stride + col : gmem, exists);
    }
  }
}

// The same for the transposed tile, kDepth x kRows, one number at a time: a warp takes 8 columns of 4 rows, which are
// whole 32-byte sectors in memory and, in a tile with 4 floats of padding, all banks once.
// Lane l of kLanes finds the rows l, l + kLanes, l + 2 kLanes, l + 3 kLanes in chunk l of a row of the tile, and so on
// for the next 4 kLanes rows. kLanes = 1: the rows in their order.
template <class Config, class Tile, int kRows, int kDepth, int kLanes>
__device__ __forceinline__ void copy_transposed_async(int smem_offset, const float* gmem, int64 row_stride,
                                                      int64 num_rows) {
  constexpr int kWarps = Config::kThreads / 32;
  static_assert(kDepth % 8 == 0 && kRows % (kChunkFloats * kWarps) == 0);
  const int rows_left = static_cast<int>(min(num_rows, int64{kRows}));
  const int col = threadIdx.x % 32 / 4;
  const int i = threadIdx.x % 4;
#pragma unroll
  for (int first = 0; first < kRows / kChunkFloats; first += kWarps) {
    const int chunk = first + threadIdx.x / 32;
    const int row = chunk / kLanes * kLanes * kChunkFloats + chunk % kLanes + i * kLanes;
    const float* source = gmem + row * row_stride + col;
    const int place = smem_offset + Tile::offset(col, chunk * kChunkFloats) + i * 4;
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 8) {
      const bool exists = row < rows_left && (Config::kHeadDim % 8 == 0 || depth + col < Config::kHeadDim);
      copy_async<4>(place + depth * Tile::kRowBytes, source + depth, exists);
    }
  }
}

}  // namespace attend
