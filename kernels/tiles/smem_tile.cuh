// Tiles of 16-bit elements in shared memory, as rows of 16-byte chunks. A chunk is the unit of vector loads, of
// cp.async and of ldmatrix. All layouts have the same interface: index(row, column) returns the place of a chunk.
#pragma once

#include "../common/portable.cuh"
#include "../common/recomputed.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

// Layout in which rows follow one another without gaps. Rows are 128 or 256 bytes long, so the same chunk of eight rows
// lies in the same four banks.
template <int kRowsOfTile, int kColumns>
struct RowMajorTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = kColumns / kChunkElements;  // number of chunks in a row
  uint4 chunk[kRows * kChunks];

  [[nodiscard]] static __device__ constexpr int index(int row, int column) { return row * kChunks + column; }

  // Returns the address of chunk (r + row, c + column), given the address of chunk (r, c) with r < 16 and c < 2. `row`
  // must be a multiple of 16, and `column` a multiple of 2.
  [[nodiscard]] static __device__ constexpr uint32 moved(uint32 address, int row, int column) {
    return address + static_cast<uint32>((row * kChunks + column) * kChunkBytes);
  }
};

// RowMajorTile with the chunks of each row permuted. Column c of row r lies at place c ^ (r % 8). The same chunk of
// eight neighbouring rows then covers 32 different banks. A 128-byte line also covers 32 different banks.
template <int kRowsOfTile, int kColumns>
struct alignas(1024) SwizzledTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = kColumns / kChunkElements;
  static_assert(kChunks % 8 == 0, "the permutation stays inside groups of eight chunks");
  uint4 chunk[kRows * kChunks];

  [[nodiscard]] static __device__ constexpr int index(int row, int column) {
    return row * kChunks + (column ^ (row % 8));
  }

  // Returns the same as RowMajorTile::moved(). Adding a multiple of 16 rows does not change row % 8, so one XOR adds
  // the column. This requires the tile's alignment.
  [[nodiscard]] static __device__ constexpr uint32 moved(uint32 address, int row, int column) {
    return (address ^ static_cast<uint32>(column * kChunkBytes)) + static_cast<uint32>(row * kChunks * kChunkBytes);
  }
};

// Layout with the permutation of SwizzledTile in panels of 64 columns, one after another (swizzled_offset). Rows of a
// panel are 128 bytes long for any width of the tile. So the width need not be a power of two, and places in two panels
// differ by a constant.
template <int kRowsOfTile, int kColumns>
struct alignas(kSwizzleAtom) PanelTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = kColumns / kChunkElements;
  static constexpr int kChunksOfPanel = kPanelColumns / kChunkElements;
  static_assert(kRows % 8 == 0 && kChunks % kChunksOfPanel == 0, "whole panels, in which the permutation repeats");
  uint4 chunk[kRows * kChunks];

  [[nodiscard]] static __device__ constexpr int index(int row, int column) {
    return static_cast<int>(swizzled_offset(kRows, row, column)) / kChunkBytes;
  }

  // See RowMajorTile::moved().
  [[nodiscard]] static __device__ constexpr uint32 moved(uint32 address, int row, int column) {
    return (address ^ static_cast<uint32>(column % kChunksOfPanel * kChunkBytes)) +
           static_cast<uint32>((column / kChunksOfPanel * kRows + row) * kSwizzleBytes);
  }
};

// Copies `rows` rows from global memory, and zeroes the other rows of the tile. Without zeros, memory behind the last
// key could contain a NaN, and 0 * v would be NaN. Neighbouring threads copy neighbouring chunks. row_stride is in
// elements. All kThreads threads call it.
template <int kThreads, class Tile>
__device__ __forceinline__ void copy_tile(Tile& tile, const void* source, int64 row_stride, int64 rows) {
  static_assert(kThreads % Tile::kChunks == 0, "a thread keeps to one column");
  constexpr int kRowStep = kThreads / Tile::kChunks;
  const int thread = recomputed_thread();
  const int first_row = thread / Tile::kChunks;
  const int column = thread % Tile::kChunks;
  const int num_rows = rows < Tile::kRows ? static_cast<int>(rows) : Tile::kRows;
  const auto* from =
      static_cast<const char*>(source) + first_row * row_stride * kTileElementBytes + column * kChunkBytes;
#pragma unroll 4  // number of loads in flight, which the registers next to the accumulators limit
  for (int row = first_row; row < first_row + Tile::kRows;
       row += kRowStep, from += kRowStep * kTileElementBytes * row_stride) {
    tile.chunk[Tile::index(row, column)] = row < num_rows ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

}  // namespace attend
