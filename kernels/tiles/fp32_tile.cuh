// Tiles of float32 in shared memory, as rows of 16-byte chunks. All offsets are in bytes. Tile offsets count from the
// start of dynamic shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

extern __shared__ __align__(1024) unsigned char fp32_smem[];

constexpr int kChunkFloats = kChunkBytes / 4;
constexpr int kBankRowBytes = 128;  // all banks once: 8 chunks

// Two layouts of rows, which avoid bank conflicts for readers and writers of a tile. Chunk c of row r is in place c ^
// (flip(r) / kChunkBytes).

// Rows with kPad floats of padding, which shift the banks from row to row.
template <int kColumns, int kPad>
struct PaddedRows {
  static constexpr int kCols = kColumns;
  static constexpr int kRun = 0;  // not flipped
  static constexpr int kRowBytes = (kCols + kPad) * 4;

  [[nodiscard]] static __device__ __forceinline__ int flip(int /*row*/) { return 0; }
};

// For lanes that read the same columns of rows that are kRun apart. Rows start at multiples of 128 bytes. So a flip
// changes only bits 4 to 6 of an address, and one XOR suffices for kRun rows.
template <int kColumns, int kRunOfRows>
struct FlippedRows {
  static_assert(kColumns % 32 == 0);
  static constexpr int kCols = kColumns;
  static constexpr int kRun = kRunOfRows;
  static constexpr int kRowBytes = kCols * 4;

  [[nodiscard]] static __device__ __forceinline__ int flip(int row) { return row / kRun % 8 * kChunkBytes; }
};

template <int kNumRows, class Layout>
struct Fp32Tile : Layout {
  static constexpr int kRows = kNumRows;
  static constexpr int kBytes = kRows * Layout::kRowBytes;

  [[nodiscard]] static __device__ __forceinline__ int offset(int row, int col) {
    return row * Layout::kRowBytes + (col / kChunkFloats * kChunkBytes ^ Layout::flip(row)) + col % kChunkFloats * 4;
  }
};

// The division of a row's columns among lanes: this lane has chunk `lane` of every `lanes` chunks.
struct ChunksOfLane {
  int lane;
  int lanes;

  // Returns the column of the lane's d-th number.
  [[nodiscard]] __device__ __forceinline__ int column(int d) const {
    return (d / kChunkFloats * lanes + lane) * kChunkFloats + d % kChunkFloats;
  }
};

// Loads kN numbers of a row: a pair, or chunks that are kStep bytes apart.
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

}  // namespace attend
