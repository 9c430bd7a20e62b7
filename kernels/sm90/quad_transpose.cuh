// Converts between the accumulator's order, in which four lanes share eight columns, and memory order, in which each
// lane has eight columns.
#pragma once

#include "../common/warp_reduce.cuh"

namespace attend {

// Transposes four registers of four neighbouring lanes. Lane q gets register q of all lanes, in the order of the lanes.
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
