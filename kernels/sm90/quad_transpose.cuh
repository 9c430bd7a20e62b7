// Converts between two layouts of a row. In the accumulator layout four lanes share eight adjacent columns. In the
// memory layout each lane holds eight adjacent columns.
#pragma once

#include "../common/warp_reduce.cuh"

namespace attend {

// Transposes a 4 x 4 matrix of registers: four registers of each of four adjacent lanes. Afterwards lane q holds
// register q of each of the four lanes, in lane order.
__device__ __forceinline__ void transpose_quad(uint32 (&r)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool high = threadIdx.x / 2 % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32 other = __shfl_xor_sync(kAllLanes, odd ? r[i] : r[i + 1], 1);
    r[i] = odd ? other : r[i];
    r[i + 1] = odd ? r[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32 other = __shfl_xor_sync(kAllLanes, high ? r[i] : r[i + 2], 2);
    r[i] = high ? other : r[i];
    r[i + 2] = high ? r[i + 2] : other;
  }
}

}  // namespace attend
