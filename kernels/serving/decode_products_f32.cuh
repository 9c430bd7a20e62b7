// DecodeProducts for float32, on CUDA cores: multiply-adds in the order of the columns, and of the keys.
#pragma once

#include "decode_products.cuh"

namespace attend {

template <class Config>
  requires(Config::kElement == ElementType::kF32)
struct DecodeProducts<Config> {
  using Sizes = DecodeSizes<Config>;
  using Loader = DecodeLoader<Config>;
  static constexpr int kEights = Sizes::kEights;
  static constexpr int kQRow = decode_row_bytes(Config::kHeadDim, Sizes::kQBytes, 32);

  __device__ __forceinline__ void take_queries(const char* /*rows*/, int /*lane*/) {}

  __device__ __forceinline__ void scores(float (&s)[kEights][4], const char* keys, const char* q_rows,
                                         int lane) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    const char* of_key = keys + lane / 4 * Loader::kKRow;
    const char* of_row = q_rows + lane % 4 * 2 * kQRow;
#pragma unroll 2
    for (int chunk = 0; chunk < ceil_div(Config::kHeadDim, 4); ++chunk) {
      const float4 k[2] = {chunk_of(of_key, chunk), chunk_of(of_key + 8 * Loader::kKRow, chunk)};
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float4 q = chunk_of(of_row + (n * 8 + row) * kQRow, chunk);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& sum = s[n][half * 2 + row];
            sum = fmaf(q.x, k[half].x, sum);
            sum = fmaf(q.y, k[half].y, sum);
            sum = fmaf(q.z, k[half].z, sum);
            sum = fmaf(q.w, k[half].w, sum);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void add_values(float (&o)[Sizes::kColumnTiles][kEights][4],
                                             const float (&p)[kEights][4], const char* values, int first_tile,
                                             int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll 1
      for (int key = 0; key < 8; ++key) {
        float of_row[kEights][2];
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            of_row[n][row] = __shfl_sync(kAllLanes, p[n][half * 2 + row], key * 4 + lane % 4);
          }
        }
        const float* v = reinterpret_cast<const float*>(values + (half * 8 + key) * Loader::kVRow) + first_tile * 16;
#pragma unroll
        for (int tile = 0; tile < Sizes::kColumnTiles; ++tile) {
          const float low = v[tile * 16 + lane / 4], high = v[tile * 16 + lane / 4 + 8];
#pragma unroll
          for (int n = 0; n < kEights; ++n) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
              o[tile][n][row] = fmaf(of_row[n][row], low, o[tile][n][row]);
              o[tile][n][2 + row] = fmaf(of_row[n][row], high, o[tile][n][2 + row]);
            }
          }
        }
      }
    }
  }

  [[nodiscard]] static __device__ __forceinline__ int column(int lane, int element) {
    return lane / 4 + element / 2 * 8;
  }
  [[nodiscard]] static __device__ __forceinline__ float value(const char* values, int key, int column) {
    return reinterpret_cast<const float*>(values + key * Loader::kVRow)[column];
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ float4 chunk_of(const char* row, int chunk) {
    return reinterpret_cast<const float4*>(row)[chunk];
  }
};

}  // namespace attend
