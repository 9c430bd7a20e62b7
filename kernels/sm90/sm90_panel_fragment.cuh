// Reads panels from shared memory. A panel is a block of 64 columns of 16-bit elements, which TMA has written.
#pragma once

#include "../isa/ldmatrix.cuh"
#include "../isa/smem_address.cuh"

namespace attend {

// Reads this thread's part of 64 rows of the panel at address `panel`. The thread gets the entries that it would hold
// in a wgmma accumulator, packed in pairs. The same registers serve as A operands of four products of depth 16. If
// kTransposed is set, the accumulator's rows are the panel's columns.
template <bool kTransposed>
__device__ __forceinline__ void read_panel(uint32* pairs, uint32 panel, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const int matrix = lane / 8, row_of_matrix = lane % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {  // this iteration reads columns 8 j to 8 j + 15 of the accumulator
    const int row = row_of_matrix + 8 * (kTransposed ? j + matrix / 2 : 2 * warp + matrix % 2);
    const int chunk = kTransposed ? 2 * warp + matrix % 2 : j + matrix / 2;
    const uint32 address = panel + row * kSwizzleBytes + (chunk ^ row_of_matrix) * kChunkBytes;
    const LoadedMatrices m = kTransposed ? ldmatrix_x4_transposed(address) : ldmatrix_x4(address);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[2 * j + i] = m.matrix[i];
  }
}

}  // namespace attend
