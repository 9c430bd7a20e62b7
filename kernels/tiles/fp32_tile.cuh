// Tiles of float32 in shared memory, as rows of 16-byte chunks. All offsets are in bytes. Offsets of tiles are measured
// from the start of dynamic shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

extern __shared__ __align__(1024) unsigned char fp32_smem[];

constexpr int kChunkFloats = kChunkBytes / 4;
constexpr int kBankRowBytes = 128;  // size of all banks together, which is 8 chunks

// Two layouts of rows follow. They avoid bank conflicts when a tile is read and written. Chunk c of row r is stored at
// place c ^ (flip(r) / kChunkBytes).

// Layout whose rows have kPad floats of padding, so that each row starts in another bank.
template <int kColumns, int kPad>
struct PaddedRows {
  static constexpr int kCols = kColumns;
  static constexpr int kRun = 0;  // rows are not flipped
  static constexpr int kRowBytes = (kCols + kPad) * 4;

  [[nodiscard]] static __device__ __forceinline__ int flip(int /*row*/) { return 0; }
};

// Layout for lanes that read the same columns of rows that are kRunOfRows apart. Rows start at multiples of 128 bytes.
// So a flip changes only bits 4 to 6 of an address, and one XOR suffices for kRun rows.
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

// How the columns of a row are divided among lanes. This lane has chunk number `lane` of every `lanes` chunks.
struct ChunksOfLane {
  int lane;
  int lanes;

  // Returns the column of the lane's number d.
  [[nodiscard]] __device__ __forceinline__ int column(int d) const {
    return (d / kChunkFloats * lanes + lane) * kChunkFloats + d % kChunkFloats;
  }
};

// Loads kN numbers of a row. The numbers are a pair, or chunks that are kStep bytes apart.
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
