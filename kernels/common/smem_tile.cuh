// Tiles of 16-bit elements in shared memory, as rows of 16-byte chunks: the unit of vector loads, of cp.async and of
// ldmatrix. Two layouts with one interface; index(row, column) is where a chunk lies.
#pragma once

#include "portable.cuh"

namespace attend {

constexpr int kChunkBytes = 16;
constexpr int kChunkElements = 8;  // of 16 bits

// Rows one after another. Rows are 128 or 256 bytes long, so the same chunk of eight rows lies in the same four banks.
template <int kRowsOfTile, int kColumns>
struct RowMajorTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = kColumns / kChunkElements;  // of a row
  uint4 chunk[kRows * kChunks];

  [[nodiscard]] static __device__ constexpr int index(int row, int column) { return row * kChunks + column; }
};

// The same with the chunks of each row permuted: column c of row r lies at place c ^ (r % 8). The same chunk of eight
// neighbouring rows now lies in 32 different banks, and the eight chunks of a 128-byte line still do.
template <int kRowsOfTile, int kColumns>
struct SwizzledTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = kColumns / kChunkElements;
  static_assert(kChunks % 8 == 0, "the permutation stays inside groups of eight chunks");
  uint4 chunk[kRows * kChunks];

  [[nodiscard]] static __device__ constexpr int index(int row, int column) {
    return row * kChunks + (column ^ (row % 8));
  }
};

// Copies `rows` rows from global memory, neighbouring threads taking neighbouring chunks, and zeroes the tile's other
// rows: a key that is not there must not bring a NaN into 0 * v. row_stride is in elements. All kThreads threads call.
template <int kThreads, class Tile>
__device__ __forceinline__ void copy_tile(Tile& tile, const void* source, int64 row_stride, int64 rows) {
  constexpr int kTotal = Tile::kRows * Tile::kChunks;
#pragma unroll
  for (int first = 0; first < kTotal; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    if (kTotal % kThreads != 0 && i >= kTotal) break;
    const int row = i / Tile::kChunks;
    const int column = i % Tile::kChunks;
    const auto* from = static_cast<const char*>(source) + row * row_stride * 2 + column * kChunkBytes;
    tile.chunk[Tile::index(row, column)] = row < rows ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

}  // namespace attend
