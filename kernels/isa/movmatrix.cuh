// movmatrix: transposes an 8 x 8 matrix of 16-bit elements between the lanes of a warp. PTX ISA, Warp level matrix
// instructions: movmatrix. sm_75 and newer.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Lane l passes the elements 2 (l % 4) and the next of row l / 4, and receives those of column l / 4. Scope: all lanes
// of a warp together.
[[nodiscard]] __device__ __forceinline__ uint32 transposed(uint32 pair) {
  uint32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

}  // namespace attend
