// Transposes an 8 x 8 matrix of 16-bit elements between the lanes of a warp. PTX ISA, Warp level matrix instructions:
// movmatrix. Requires sm_75 or newer.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Transposes a matrix. Lane l passes the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, and receives the same
// elements of column l / 4. All lanes of a warp must call it together.
[[nodiscard]] __device__ __forceinline__ uint32 transposed(uint32 pair) {
  uint32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

}  // namespace attend
