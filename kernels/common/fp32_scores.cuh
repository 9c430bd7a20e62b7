// What a thread does with its tile of float32 scores, kM neighbouring rows x kN neighbouring keys, and the order in
// which blocks take tiles under a causal mask.
#pragma once

#include "fp32_tile.cuh"
#include "key_range.cuh"
#include "numbers.cuh"
#include "portable.cuh"
#include "work.cuh"

namespace attend {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// The same tile of all heads in neighbouring blocks: where tiles differ in work, those that start first, over the whole
// grid, are the ones with the lowest index.
[[nodiscard]] __device__ __forceinline__ HeadTile tile_by_tile(uint32 block, uint32 batch, uint32 num_heads) {
  const uint32 head_of_all = block % (batch * num_heads);
  return {head_of_all / num_heads, head_of_all % num_heads, block / (batch * num_heads)};
}

template <int kM, int kN>
__device__ __forceinline__ void negate(float (&s)[kM][kN]) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) s[i][j] = -s[i][j];
  }
}

// Scores of keys that their row does not see become -inf.
template <int kM, int kN>
__device__ __forceinline__ void mask_scores(float (&s)[kM][kN], const WindowMask& mask, int64 first_row,
                                            int64 first_key) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const auto seen = static_cast<int>(min(int64{kN}, mask.row(first_row + i).end - first_key));
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (j >= seen) s[i][j] = -kInfinity;
    }
  }
}

// To a tile of shared memory that starts at offset.
template <class Tile, int kM, int kN>
__device__ __forceinline__ void store_scores(const float (&s)[kM][kN], int offset, int row, int key) {
  constexpr int kWidth = kN < kChunkFloats ? kN : kChunkFloats;
  static_assert(kWidth == 2 || kWidth == 4);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; j += kWidth) {
      const int place = Tile::offset(row + i, (key + j) / kChunkFloats) + (key + j) % kChunkFloats * 4;
      if constexpr (kWidth == 4) {
        *reinterpret_cast<float4*>(fp32_smem + offset + place) =
            make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
      } else {
        *reinterpret_cast<float2*>(fp32_smem + offset + place) = make_float2(s[i][j], s[i][j + 1]);
      }
    }
  }
}

}  // namespace attend
