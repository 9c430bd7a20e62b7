// The products of a warp in a step: S^T = K Q^T of its stripe's 16 keys, and O^T += V^T P^T. Keys and columns are the
// rows of the tensor cores' tiles, so that few query rows fill a tile.
//
// A lane has of S^T keys lane / 4 and lane / 4 + 8 of rows 2 (lane % 4) and the next, of every eight rows; of O^T the
// same rows of columns lane / 4 and lane / 4 + 8 of every sixteen.
#pragma once

#include "../isa/ldmatrix.cuh"
#include "../isa/mma.cuh"
#include "../isa/movmatrix.cuh"
#include "decode_loader.cuh"

namespace attend {

// 16-bit elements.
template <class Config>
struct DecodeProducts {
  using Sizes = DecodeSizes<Config>;
  using Loader = DecodeLoader<Config>;
  using Element = ElementOf<Config>;
  static constexpr int kEights = Sizes::kEights;
  static constexpr int kDepths = ceil_div(Config::kHeadDim, kMmaDepth);
  static constexpr int kQRow = decode_row_bytes(Config::kHeadDim, Sizes::kQBytes, 32);
  static constexpr bool kQInRegisters = kEights * kDepths * 2 <= 64;

  // Two depths of an eight of rows: reg[0], reg[1] of the first, then of the second.
  LoadedMatrices q[kQInRegisters ? kEights : 1][kQInRegisters ? ceil_div(kDepths, 2) : 1];

  [[nodiscard]] static __device__ __forceinline__ LoadedMatrices load_q(const char* rows, int lane, int n,
                                                                        int pair_of_depths) {
    return ldmatrix_x4(smem_address(rows + (n * 8 + lane % 8) * kQRow + (pair_of_depths * 4 + lane / 8) * kChunkBytes));
  }

  // rows: of the warp's part of q in shared memory.
  __device__ __forceinline__ void take_queries(const char* rows, int lane) {
    if constexpr (kQInRegisters) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int pair = 0; pair < ceil_div(kDepths, 2); ++pair) q[n][pair] = load_q(rows, lane, n, pair);
      }
    }
  }

  // Even and odd depths are summed up apart: the products of each follow on one another.
  __device__ __forceinline__ void scores(float (&s)[kEights][4], const char* keys, const char* q_rows, int lane) const {
    float odd[kEights][4] = {};
    const uint32 row = smem_address(keys + lane % 16 * Loader::kKRow + lane / 16 * kChunkBytes);
#pragma unroll
    for (int n = 0; n < kEights; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) {
      const LoadedMatrices k = ldmatrix_x4(row + depth * 2 * kChunkBytes);
      const OperandA a = {{k.matrix[0], k.matrix[1], k.matrix[2], k.matrix[3]}};
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const LoadedMatrices pair = kQInRegisters ? q[kQInRegisters ? n : 0][kQInRegisters ? depth / 2 : 0]
                                                  : load_q(q_rows, lane, n, depth / 2);
        const OperandB b = {{pair.matrix[depth % 2 * 2], pair.matrix[depth % 2 * 2 + 1]}};
        mma_add<Element>(depth % 2 == 0 ? s[n] : odd[n], a, b);
      }
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
    }
  }

  // p: as scores() lays them out.
  __device__ __forceinline__ void add_values(float (&o)[Sizes::kColumnTiles][kEights][4], const float (&p)[kEights][4],
                                             const char* values, int first_tile, int lane) const {
    OperandB b[kEights];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      b[n] = {{transposed(Element::pack(p[n][0], p[n][1])), transposed(Element::pack(p[n][2], p[n][3]))}};
    }
    const uint32 row = smem_address(values + (lane % 8 + lane / 16 * 8) * Loader::kVRow +
                                    (first_tile * 2 + lane / 8 % 2) * kChunkBytes);
#pragma unroll
    for (int tile = 0; tile < Sizes::kColumnTiles; ++tile) {
      const LoadedMatrices v = ldmatrix_x4_transposed(row + tile * 2 * kChunkBytes);
      const OperandA a = {{v.matrix[0], v.matrix[1], v.matrix[2], v.matrix[3]}};
#pragma unroll
      for (int n = 0; n < kEights; ++n) mma_add<Element>(o[tile][n], a, b[n]);
    }
  }

  // The column of o that element `element` of a tile of 16 columns has.
  [[nodiscard]] static __device__ __forceinline__ int column(int lane, int element) {
    return lane / 4 + element / 2 * 8;
  }
  // An element of v in shared memory.
  [[nodiscard]] static __device__ __forceinline__ float value(const char* values, int key, int column) {
    return Element::to_float(reinterpret_cast<const Bits16*>(values + key * Loader::kVRow)[column]);
  }
};

}  // namespace attend
