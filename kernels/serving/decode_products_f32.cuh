// Specialises DecodeProducts for a float32 q. It uses fused multiply-adds on CUDA cores. Scores are summed in the order
// of the columns, and o in the order of the keys.
#pragma once

#include "decode_products_8bit.cuh"

namespace attend {

template <class Config>
requires(Config::kElement == ElementType::kF32) struct DecodeProducts<Config> {
  using Sizes = DecodeSizes<Config>;
  using Role = DecodeRole<Config>;
  static constexpr int kEights = Sizes::kEights;

  __device__ __forceinline__ void take_queries(const char* /*rows*/, int /*lane*/) {}

  __device__ __forceinline__ void scores(float (&s)[kEights][4], const char* keys, const char* q_rows, int lane) const {
#pragma unroll
    for (int n = 0; n < kEights; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    const char* of_row = q_rows + lane % 4 * 2 * Sizes::kQRow;
#pragma unroll 2
    for (int chunk = 0; chunk < ceil_div(Config::kHeadDim, 4); ++chunk) {
      const float4 k[2] = {cached_chunk(keys, lane / 4, chunk), cached_chunk(keys, lane / 4 + 8, chunk)};
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float4 q = chunk_of(of_row + (n * 8 + row) * Sizes::kQRow, chunk);
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

  __device__ __forceinline__ void add_values(float (&o)[Sizes::kOwned][kEights][4], const char* p_rows,
                                             const char* values, const Role& role) const {
#pragma unroll 1
    for (int chunk = 0; chunk < kStepKeys / 4; ++chunk) {
      float4 p[kEights][2];
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          p[n][row] = DecodeP<Config>::load(p_rows, n * 8 + role.lane % 4 * 2 + row, chunk);
        }
      }
#pragma unroll
      for (int owned = 0; owned < Sizes::kOwned; ++owned) {
        if (Sizes::kColumnTiles % kTeamWarps != 0 && role.column_tile(owned) >= Sizes::kColumnTiles) continue;
        const int column = role.column_tile(owned) * 16 + role.lane / 4;
#pragma unroll
        for (int key = 0; key < 4; ++key) {
          const float low = value(values, chunk * 4 + key, column), high = value(values, chunk * 4 + key, column + 8);
#pragma unroll
          for (int n = 0; n < kEights; ++n) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
              const float4& x = p[n][row];
              const float weight = key == 0 ? x.x : key == 1 ? x.y : key == 2 ? x.z : x.w;
              o[owned][n][row] = fmaf(weight, low, o[owned][n][row]);
              o[owned][n][2 + row] = fmaf(weight, high, o[owned][n][2 + row]);
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
    const char* at = values + Sizes::VRows::template place_of<Sizes::kCacheBytes>(key, column);
    if constexpr (Config::kCacheElement == CacheElement::kSame) {
      return *reinterpret_cast<const float*>(at);
    } else {
      return CachedBytes<Config::kCacheElement>::to_float(*reinterpret_cast<const unsigned char*>(at));
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ float4 chunk_of(const char* row, int chunk) {
    return reinterpret_cast<const float4*>(row)[chunk];
  }
  // Returns columns 4 chunk to 4 chunk + 3 of a key as floats.
  [[nodiscard]] static __device__ __forceinline__ float4 cached_chunk(const char* keys, int key, int chunk) {
    const char* at = keys + Sizes::KRows::template place_of<Sizes::kCacheBytes>(key, chunk * 4);
    if constexpr (Config::kCacheElement == CacheElement::kSame) {
      return *reinterpret_cast<const float4*>(at);
    } else {
      float x[4];
      CachedBytes<Config::kCacheElement>::to_floats(*reinterpret_cast<const uint32*>(at), x);
      return {x[0], x[1], x[2], x[3]};
    }
  }
};

}  // namespace attend
