// Stores four 8 x 8 tiles of 16-bit elements from a warp's registers to shared memory. PTX ISA: stmatrix. Requires
// sm_90.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Stores four tiles. Lane l passes the address of row l % 8 of tile l / 8, which has 16 bytes. For each tile, lane l
// passes the pair of elements in row l / 4 and columns 2 (l % 4) and 2 (l % 4) + 1. This is the layout of accumulators
// whose neighbours are packed. The clobber "memory" keeps the store before the following fence.
__device__ __forceinline__ void stmatrix_x4(uint32 address, const uint32 (&pair)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(pair[0]),
               "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
               : "memory");
}

// Stores four tiles and transposes each. Lane l passes the address of row l % 8 of the transposed tile l / 8.
__device__ __forceinline__ void stmatrix_transposed(uint32 address, uint32 m0, uint32 m1, uint32 m2, uint32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

}  // namespace attend
