// Copies tiles between global and shared memory in pieces of kCopyBytes bytes. All addresses, strides and row lengths
// are multiples of kCopyBytes. Small pieces therefore allow tensors of any alignment.
#pragma once

#include "../common/element.cuh"
#include "../isa/cp_async.cuh"
#include "../isa/mma.cuh"
#include "../tiles/smem_tile.cuh"

namespace attend {

// A piece is the data that one thread copies in one step. Pieces of 16 and 4 bytes are copied asynchronously
// (cp_async.cuh). Pieces of 2 bytes are copied through a register.
template <int kBytes>
struct CopyPiece;
template <>
struct CopyPiece<16> {
  using Type = uint4;
  static __device__ __forceinline__ void load(uint32 smem, const void* gmem, bool is_inside) {
    cp_async_16(smem, gmem, is_inside);
  }
};
template <>
struct CopyPiece<4> {
  using Type = uint32;
  static __device__ __forceinline__ void load(uint32 smem, const void* gmem, bool is_inside) {
    cp_async_4(smem, gmem, is_inside);
  }
};
template <>
struct CopyPiece<int{sizeof(Bits16)}> {
  using Type = Bits16;
  static __device__ __forceinline__ void load(uint32 smem, const void* gmem, bool is_inside) {
    const Bits16 bits = is_inside ? __ldg(static_cast<const Bits16*>(gmem)) : Bits16{0};
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(smem), "h"(bits) : "memory");
  }
};

// One thread's share of the copies of a tile. The thread copies one piece of each panel in every kRowStep-th row. Calls
// of load() continue with the tile that follows in global memory.
template <class Config, class Tile>
class PieceLoader {
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kCopyBytes = Config::kCopyBytes;
  static constexpr int kPieces = kSwizzleBytes / kCopyBytes;  // pieces in one row of a panel
  static constexpr int kRowStep = kThreads / kPieces;
  static constexpr int kPanels = Tile::kChunks / Tile::kChunksOfPanel;
  // Limits the code size if pieces are small.
  static constexpr int kRowsAtOnce = kCopyBytes == 16 ? Tile::kRows / kRowStep : 4;
  static_assert(kThreads % kPieces == 0 && Tile::kRows % kRowStep == 0, "all threads have as much to do");

 public:
  // row_stride is in elements, here and in load(). `thread` is the index in the block.
  __device__ __forceinline__ PieceLoader(const void* source, int64 row_stride, uint32 thread = threadIdx.x)
      : row_(static_cast<int>(thread / kPieces)),
        piece_(static_cast<int>(thread % kPieces)),
        source_(static_cast<const char*>(source) + row_ * row_stride * kTileElementBytes + piece_ * kCopyBytes) {}

  // Starts the copies of the next tile. Elements outside its first `rows` rows and `columns` columns become zero.
  // Otherwise a NaN in memory could enter the products q.k or 0 * v.
  __device__ __forceinline__ void load(Tile& tile, int64 row_stride, int rows, int columns) {
    const uint32 target = smem_address(tile.chunk);
    const int64 step = kRowStep * kTileElementBytes * row_stride;
#pragma unroll kRowsAtOnce
    for (int i = 0; i < Tile::kRows; i += kRowStep, source_ += step) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int byte = piece_ * kCopyBytes;
        const bool is_inside = row_ + i < rows && panel * kSwizzleBytes + byte < columns * kTileElementBytes;
        const int chunk = Tile::index(row_ + i, panel * Tile::kChunksOfPanel + byte / kChunkBytes);
        CopyPiece<kCopyBytes>::load(target + chunk * kChunkBytes + byte % kChunkBytes, source_ + panel * kSwizzleBytes,
                                    is_inside);
      }
    }
  }

 private:
  int row_;
  int piece_;
  const char* source_;
};

// Starts the copies of one tile in pieces of 16 bytes. The function needs few instructions and registers. So it suits
// loops over many tiles, which have few registers to spare. Elements outside the tile's first `rows` rows and `columns`
// columns become zero. row_stride is in elements. All kThreads threads must call this.
template <int kThreads, class Tile>
__device__ __forceinline__ void load_tile(Tile& tile, const void* source, int64 row_stride, int rows, int columns) {
  constexpr int kPieces = Tile::kChunksOfPanel;
  constexpr int kPanels = Tile::kChunks / kPieces;
  constexpr int kRowStep = kThreads / kPieces;
  static_assert(kRowStep % 8 == 0 && Tile::kRows % kRowStep == 0, "a thread's rows are swizzled alike");
  const uint32 thread = recomputed(threadIdx.x);
  const auto row = static_cast<int>(thread / kPieces);
  const auto piece = static_cast<int>(thread % kPieces);
  const auto* from = static_cast<const char*>(source) + row * row_stride * kTileElementBytes + piece * kChunkBytes;
  uint32 target = smem_address(tile.chunk) + Tile::index(row, piece) * kChunkBytes;
  if (rows >= Tile::kRows && columns == Tile::kChunks * kChunkElements) {
#pragma unroll
    for (int i = 0; i < Tile::kRows; i += kRowStep, from += kRowStep * kTileElementBytes * row_stride) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        cp_async_16(target + (panel * Tile::kRows + i) * kSwizzleBytes, from + panel * kSwizzleBytes);
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = row; i < Tile::kRows; i += kRowStep, from += kRowStep * kTileElementBytes * row_stride) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const bool is_inside = i < rows && panel * kPanelColumns + piece * kChunkElements < columns;
      cp_async_16(target + panel * Tile::kRows * kSwizzleBytes, from + panel * kSwizzleBytes, is_inside);
    }
    target += kRowStep * kSwizzleBytes;
  }
}

// Stores up to kMmaRows rows of a tile with one warp, starting at row `row`. Only the first `rows` of these rows exist,
// and only their first `columns` columns are stored. row_stride is in elements.
template <class Config, class Tile>
__device__ __forceinline__ void store_pieces(const Tile& tile, int row, void* destination, int64 row_stride, int64 rows,
                                             int columns) {
  constexpr int kCopyBytes = Config::kCopyBytes;
  using Piece = typename CopyPiece<kCopyBytes>::Type;
  const int pieces = columns * kTileElementBytes / kCopyBytes;  // the division has no remainder
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < kMmaRows * pieces; i += 32) {
    const int r = i / pieces;
    const int byte = i % pieces * kCopyBytes;
    if (r >= rows) break;
    const uint4& chunk = tile.chunk[Tile::index(row + r, byte / kChunkBytes)];
    const auto* from = reinterpret_cast<const char*>(&chunk) + byte % kChunkBytes;
    auto* to = static_cast<char*>(destination) + r * row_stride * kTileElementBytes + byte;
    *reinterpret_cast<Piece*>(to) = *reinterpret_cast<const Piece*>(from);
  }
}

}  // namespace attend
