// Loads 8 x 8 matrices of 16-bit elements from shared memory into registers, in the operand layout of mma. PTX ISA,
// Warp level matrix instructions: ldmatrix. Requires sm_75 or newer.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Four 8 x 8 matrices. Lane l passes the address of row l % 8 of matrix l / 8. A row has 16 bytes, and its address is a
// multiple of 16. Lane l receives the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i in matrix[i].
struct LoadedMatrices {
  uint32 matrix[4];
};

// Loads four matrices. All lanes of a warp must call it together. The asm is volatile and clobbers "memory", because it
// reads shared memory and must stay between the barriers before and after it.
[[nodiscard]] __device__ __forceinline__ LoadedMatrices ldmatrix_x4(uint32 row_address) {
  LoadedMatrices r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.matrix[0]), "=r"(r.matrix[1]), "=r"(r.matrix[2]), "=r"(r.matrix[3])
               : "r"(row_address)
               : "memory");
  return r;
}

// Loads four matrices and transposes each. Lane l receives the rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
[[nodiscard]] __device__ __forceinline__ LoadedMatrices ldmatrix_x4_transposed(uint32 row_address) {
  LoadedMatrices r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.matrix[0]), "=r"(r.matrix[1]), "=r"(r.matrix[2]), "=r"(r.matrix[3])
               : "r"(row_address)
               : "memory");
  return r;
}

}  // namespace attend
