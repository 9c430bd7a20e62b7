// Products of tiles that hold NaN or infinities where some rows do not look.
//
// In a product of tiles, what a row does not see is multiplied by 0, and 0 * NaN is NaN. So what is not seen is marked:
// its probability (or the gradient of its score) is -0, which no other entry is. Tiles that are finite throughout, and
// their loads know that, need no more: -0 adds nothing. The rare others take the product that leaves marked entries
// out.
#pragma once

#include "../tiles/fp32_tile.cuh"

namespace attend {

constexpr float kNotSeen = -0.0f;

[[nodiscard]] __device__ __forceinline__ bool is_seen(float number) {
  return __float_as_uint(number) != 0x80000000u;
}

// value, whatever it is, as an entry that is seen: -0 becomes +0.
[[nodiscard]] __device__ __forceinline__ float as_seen(float value) {
  return value + 0.0f;
}

// multiply_columns without the entries of a that are marked. For the exception, not for speed.
template <int kDepth, class ATile, class BTile, int kStep, int kM, int kN>
__device__ __forceinline__ void multiply_seen_columns(float (&acc)[kM][kN], int a, int a_col, int b, int b_col) {
#pragma unroll 1
  for (int r = 0; r < kDepth; ++r) {
    float b_frag[kN];
    load_numbers<kN, kStep>(b_frag, b + r * BTile::kRowBytes + (b_col ^ BTile::flip(r)));
#pragma unroll
    for (int i = 0; i < kM; i += kChunkFloats) {
      float a_frag[kChunkFloats];
      load_numbers<kChunkFloats, 0>(a_frag, a + r * ATile::kRowBytes + ((a_col + i * 4) ^ ATile::flip(r)));
#pragma unroll
      for (int c = 0; c < kChunkFloats; ++c) {
        if (is_seen(a_frag[c])) multiply_row<kM, kN>(acc, i + c, a_frag[c], b_frag);
      }
    }
  }
}

// acc[i][j] += sum over r < kDepth of a[r][i] * b[r][j], without marked entries of a where b is not finite.
template <int kDepth, class ATile, class BTile, int kStep, int kM, int kN>
__device__ __forceinline__ void multiply_marked_columns(float (&acc)[kM][kN], int a, int a_col, int b, int b_col,
                                                        bool b_is_finite) {
  static_assert(kM % kChunkFloats == 0);
  if (b_is_finite) {
    multiply_columns<kDepth, ATile, BTile, kStep>(acc, a, a_col, b, b_col);
  } else {
    multiply_seen_columns<kDepth, ATile, BTile, kStep>(acc, a, a_col, b, b_col);
  }
}

}  // namespace attend
