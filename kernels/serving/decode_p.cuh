// P of a step in shared memory, where it lies between the two products. There is a row of 64 keys for each query row of
// the team. Elements have the type of the product. Each warp writes its 16 keys of all rows, and reads all keys.
#pragma once

#include "../isa/ldmatrix.cuh"
#include "../isa/movmatrix.cuh"
#include "decode_config.cuh"

namespace attend {

// P with 16-bit elements.
template <class Config>
struct DecodeP {
  using Sizes = DecodeSizes<Config>;
  using Element = ProductElementOf<Config>;
  static constexpr int kEights = Sizes::kEights;

  // Stores p, which has the layout of the scores (decode_products.cuh).
  static __device__ __forceinline__ void store(const float (&p)[kEights][4], char* rows,
                                               const DecodeRole<Config>& role) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      char* row = rows + (n * 8 + role.lane / 4) * Sizes::kPRow + (role.warp * kWarpKeys + role.lane % 4 * 2) * 2;
      *reinterpret_cast<uint32*>(row) = transposed(Element::pack(p[n][0], p[n][1]));
      *reinterpret_cast<uint32*>(row + 16) = transposed(Element::pack(p[n][2], p[n][3]));
    }
  }

  // Loads 32 keys of eight query rows, as operands of two tile products.
  [[nodiscard]] static __device__ __forceinline__ LoadedMatrices load(const char* rows, int lane, int n, int half) {
    const uint32 first = smem_address(rows) + lane % 8 * Sizes::kPRow + lane / 8 * kChunkBytes;
    return ldmatrix_x4(first + n * 8 * Sizes::kPRow + half * 4 * kChunkBytes);
  }

  [[nodiscard]] static __device__ __forceinline__ float at(const char* rows, int row, int key) {
    return Element::to_float(reinterpret_cast<const Bits16*>(rows + row * Sizes::kPRow)[key]);
  }
};

template <class Config>
requires(Config::kElement == ElementType::kF32) struct DecodeP<Config> {
  using Sizes = DecodeSizes<Config>;
  static constexpr int kEights = Sizes::kEights;

  static __device__ __forceinline__ void store(const float (&p)[kEights][4], char* rows,
                                               const DecodeRole<Config>& role) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float* keys = reinterpret_cast<float*>(rows + (n * 8 + role.lane % 4 * 2 + row) * Sizes::kPRow) +
                      role.warp * kWarpKeys + role.lane / 4;
        keys[0] = p[n][row], keys[8] = p[n][2 + row];
      }
    }
  }

  // Returns the p of four keys of a query row.
  [[nodiscard]] static __device__ __forceinline__ float4 load(const char* rows, int row, int chunk) {
    return reinterpret_cast<const float4*>(rows + row * Sizes::kPRow)[chunk];
  }

  [[nodiscard]] static __device__ __forceinline__ float at(const char* rows, int row, int key) {
    return reinterpret_cast<const float*>(rows + row * Sizes::kPRow)[key];
  }
};

}  // namespace attend
