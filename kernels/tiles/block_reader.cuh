// Operands of mma.m16n8k16 from tiles in shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../isa/ldmatrix.cuh"
#include "../isa/mma.cuh"
#include "../isa/smem_address.cuh"
#include "smem_tile.cuh"

namespace attend {

// Reads 16 x 16 blocks of a tile. The lane-dependent part of the address is computed once.
template <class Tile>
class BlockReader {
 public:
  // Returns a reader of blocks as A, or as B with rows of the tile as its rows (V): matrices 0 and 1 are rows 0-7 and
  // 8-15.
  [[nodiscard]] static __device__ __forceinline__ BlockReader by_rows(const Tile& tile, int lane) {
    return BlockReader(tile, lane % 16, lane / 16);
  }
  // Returns a reader of blocks as B with rows of the tile as its columns (K): matrices 0 and 1 are columns 0-7 and
  // 8-15.
  [[nodiscard]] static __device__ __forceinline__ BlockReader by_columns(const Tile& tile, int lane) {
    return BlockReader(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  // Return the block whose first element is (row, column), both multiples of 16.
  [[nodiscard]] __device__ __forceinline__ OperandA a(int row, int column) const {
    const LoadedMatrices m = ldmatrix_x4(Tile::moved(address_, row, column / kChunkElements));
    return {{m.matrix[0], m.matrix[1], m.matrix[2], m.matrix[3]}};
  }
  [[nodiscard]] __device__ __forceinline__ OperandBPair b_transposed(int row, int column) const {
    const LoadedMatrices m = ldmatrix_x4(Tile::moved(address_, row, column / kChunkElements));
    return {{{{m.matrix[0], m.matrix[1]}}, {{m.matrix[2], m.matrix[3]}}}};
  }
  [[nodiscard]] __device__ __forceinline__ OperandBPair b(int row, int column) const {
    const LoadedMatrices m = ldmatrix_x4_transposed(Tile::moved(address_, row, column / kChunkElements));
    return {{{{m.matrix[0], m.matrix[1]}}, {{m.matrix[2], m.matrix[3]}}}};
  }

 private:
  __device__ __forceinline__ BlockReader(const Tile& tile, int row, int chunk)
      : address_(smem_address(tile.chunk) + Tile::index(row, chunk) * kChunkBytes) {}
  uint32 address_;
};

}  // namespace attend
