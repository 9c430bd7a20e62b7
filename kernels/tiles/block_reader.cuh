// Reads operands of mma.m16n8k16 from tiles in shared memory.
#pragma once

#include "../common/portable.cuh"
#include "../isa/ldmatrix.cuh"
#include "../isa/mma.cuh"
#include "../isa/smem_address.cuh"
#include "smem_tile.cuh"

namespace attend {

// Reads 16 x 16 blocks of a tile. The part of the address that depends on the lane is computed only once.
template <class Tile>
class BlockReader {
 public:
  // Returns a reader for operand A. It also reads operand B if rows of the tile are rows of B, which is true of V.
  // Matrices 0 and 1 of a block are then rows 0-7 and 8-15.
  [[nodiscard]] static __device__ __forceinline__ BlockReader by_rows(const Tile& tile, int lane) {
    return BlockReader(tile, lane % 16, lane / 16);
  }
  // Returns a reader for operand B if rows of the tile are columns of B, which is true of K. Matrices 0 and 1 of a
  // block are then columns 0-7 and 8-15.
  [[nodiscard]] static __device__ __forceinline__ BlockReader by_columns(const Tile& tile, int lane) {
    return BlockReader(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  // These functions return the block whose first element is (row, column). The two numbers must be multiples of 16.
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
