// Stores of 8 x 8 matrices by a warp. PTX ISA, warp-level matrix instructions: stmatrix. sm_90.
#pragma once

#include "portable.cuh"

namespace attend {

// Four matrices, transposed: lane l gives the address of row l % 8 of the transposed matrix l / 8, 16 bytes each.
// Register i holds what mma accumulators pack into: of matrix i the pair (row l / 4, columns 2 (l % 4) and + 1).
// "memory": stays before the fence and the barrier that hand the tile over.
__device__ __forceinline__ void stmatrix_transposed(uint32 address, uint32 m0, uint32 m1, uint32 m2, uint32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

}  // namespace attend
