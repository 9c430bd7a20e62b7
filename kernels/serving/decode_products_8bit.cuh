// Specialises DecodeProducts for 8-bit caches with a 16-bit q. Cache elements are converted exactly to 16 bits in
// registers, and are multiplied by 16-bit products. A bf16 q is converted to f16 after each row has been multiplied by
// a power of two. This conversion is exact except for elements below 2^-28 of the row's largest element. DecodeLeaf
// applies the descale factors of the cache.
//
// A 32-bit register holds four neighbouring elements of a row. The tensor cores need two pairs of elements whose
// positions are eight apart. So the depth of a product is permuted in the same way for the cache and for q, and columns
// of o are numbered in pairs.
#pragma once

#include "decode_products.cuh"
#include "decode_rows.cuh"
#include "eight_bits.cuh"

namespace attend {

// Four cached bytes, converted to two pairs of f16.
struct ElementPairs {
  uint32 low, high;
};

// Converts cached bytes to numbers. pairs() returns the pairs of bytes {0, 1} and {2, 3}. If kInterleaved is set, it
// returns the pairs {0, 2} and {1, 3}.
template <CacheElement kCache>
struct CachedBytes;

template <>
struct CachedBytes<CacheElement::kF8E4M3> {
  template <bool kInterleaved>
  [[nodiscard]] static __device__ __forceinline__ ElementPairs pairs(uint32 bytes) {
    const uint32 ordered = kInterleaved ? __byte_perm(bytes, 0, 0x3120) : bytes;
    return {halves(ordered), halves(ordered >> 16)};
  }
  // Returns the lower half of `bytes` as two f16.
  [[nodiscard]] static __device__ __forceinline__ uint32 halves(uint32 bytes) {
    uint32 pair;
#if __CUDA_ARCH__ >= 890
    // PTX ISA, data movement and conversion: cvt
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(bytes)));
#else
    pair = Float16::pack(to_float(bytes & 0xff), to_float(bytes >> 8 & 0xff));
#endif
    return pair;
  }
  [[nodiscard]] static __device__ __forceinline__ float to_float(uint32 byte) {
    return Float8E4M3::to_float(static_cast<Float8E4M3::Storage>(byte));
  }
  static __device__ __forceinline__ void to_floats(uint32 bytes, float (&x)[4]) {
    const uint32 low = halves(bytes), high = halves(bytes >> 16);
    x[0] = Float16::low(low), x[1] = Float16::high(low), x[2] = Float16::low(high), x[3] = Float16::high(high);
  }
};

template <>
struct CachedBytes<CacheElement::kI8> {
  // For each byte x, builds the f16 number 1024 + 128 + x, whose lowest bits are x + 128, and then subtracts 1152.
  template <bool kInterleaved>
  [[nodiscard]] static __device__ __forceinline__ ElementPairs pairs(uint32 bytes) {
    constexpr uint32 kTop = 0x64646464u;
    const uint32 shifted = bytes ^ 0x80808080u;
    return {without_shift(__byte_perm(shifted, kTop, kInterleaved ? 0x4240 : 0x4140)),
            without_shift(__byte_perm(shifted, kTop, kInterleaved ? 0x4341 : 0x4342))};
  }
  [[nodiscard]] static __device__ __forceinline__ uint32 without_shift(uint32 shifted) {
    uint32 pair;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(shifted), "r"(0x64806480u));
    return pair;
  }
  [[nodiscard]] static __device__ __forceinline__ float to_float(uint32 byte) {
    return Int8::to_float(static_cast<Int8::Storage>(byte));
  }
  // For each byte x, builds the f32 number 2^23 + 128 + x, whose lowest bits are x + 128, and then subtracts 2^23 +
  // 128.
  static __device__ __forceinline__ void to_floats(uint32 bytes, float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __uint_as_float(__byte_perm(bytes ^ 0x80808080u, 0x4b000000u, 0x7650 + i)) - 8388736.0f;
    }
  }
};

// Converts rows of q from bf16 to f16 in place. Each row is scaled so that its largest element lies in [2^14, 2^15).
// DecodeRow::unit is set to the factor that reverses this scaling in the row's scores. The warps of a team call it
// after a team barrier, and each warp converts some of the rows.
template <class Config>
__device__ __forceinline__ void convert_queries(char* q_rows, DecodeRow* rows, const DecodeRole<Config>& role) {
  using Sizes = DecodeSizes<Config>;
  constexpr int kPairs = round_up(Config::kHeadDim, 32) / 2;
#pragma unroll 1
  for (int row = role.warp; row < Config::kRows; row += kTeamWarps) {
    auto* pairs = reinterpret_cast<uint32*>(q_rows + row * Sizes::kQRow);
    float largest = 0.0f;
    for (int pair = role.lane; pair < kPairs; pair += kWarpThreads) {
      const float low = fabsf(BFloat16::low(pairs[pair])), high = fabsf(BFloat16::high(pairs[pair]));
      if (low < kInfinity) largest = fmaxf(largest, low);
      if (high < kInfinity) largest = fmaxf(largest, high);
    }
    const int exponent = static_cast<int>(__float_as_uint(warp_max(largest)) >> 23) - 127;
    const int shift = min(max(14 - exponent, -126), 126);
    const float unit = __uint_as_float(static_cast<uint32>(127 + shift) << 23);
    for (int pair = role.lane; pair < kPairs; pair += kWarpThreads) {
      pairs[pair] = Float16::pack(BFloat16::low(pairs[pair]) * unit, BFloat16::high(pairs[pair]) * unit);
    }
    if (role.lane == 0) rows[row].unit = __uint_as_float(static_cast<uint32>(127 - shift) << 23);
  }
}

template <class Config>
requires(Config::kElement != ElementType::kF32 &&
         Config::kCacheElement != CacheElement::kSame) struct DecodeProducts<Config> {
  using Sizes = DecodeSizes<Config>;
  using Role = DecodeRole<Config>;
  using KRows = typename Sizes::KRows;
  using VRows = typename Sizes::VRows;
  using Bytes = CachedBytes<Config::kCacheElement>;
  using Element = ProductElementOf<Config>;
  static_assert(kProductElement<Config> == ElementType::kF16);
  static constexpr int kEights = Sizes::kEights;
  static constexpr int kDepths = ceil_div(Config::kHeadDim, kMmaDepth);
  static constexpr bool kQInRegisters = kEights * kDepths * 2 <= 48;

  uint2 q[kQInRegisters ? kEights : 1][kQInRegisters ? kDepths : 1];

  [[nodiscard]] static __device__ __forceinline__ uint2 load_q(const char* rows, int lane, int n, int depth) {
    return *reinterpret_cast<const uint2*>(rows + (n * 8 + lane / 4) * Sizes::kQRow + (depth * 16 + lane % 4 * 4) * 2);
  }

  __device__ __forceinline__ void take_queries(const char* rows, int lane) {
    if constexpr (kQInRegisters) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int depth = 0; depth < kDepths; ++depth) q[n][depth] = load_q(rows, lane, n, depth);
      }
    }
  }

  __device__ __forceinline__ void scores(float (&s)[kEights][4], const char* keys, const char* q_rows, int lane) const {
    const uint32 row = smem_address(keys) + KRows::place(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < kEights; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int depth = 0; depth < kDepths; depth += 2) {
      const LoadedMatrices k = ldmatrix_x4(KRows::behind(row, depth));  // for each of 16 keys, a 16-byte chunk holds
                                                                        // the elements of one depth
#pragma unroll
      for (int of_pair = 0; of_pair < 2; ++of_pair) {
        if (depth + of_pair >= kDepths) continue;
        const ElementPairs low = Bytes::template pairs<false>(k.matrix[of_pair * 2]),
                           high = Bytes::template pairs<false>(k.matrix[of_pair * 2 + 1]);
        const OperandA a = {{low.low, high.low, low.high, high.high}};
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          const uint2 b = kQInRegisters ? q[kQInRegisters ? n : 0][kQInRegisters ? depth + of_pair : 0]
                                        : load_q(q_rows, lane, n, depth + of_pair);
          mma_add<Element>(s[n], a, {{b.x, b.y}});
        }
      }
    }
  }

  __device__ __forceinline__ void add_values(float (&o)[Sizes::kOwned][kEights][4], const char* p_rows,
                                             const char* values, const Role& role) const {
    const uint32 first = smem_address(values) + VRows::place(role.lane, role.column_tile(0));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      LoadedMatrices p[kEights];
#pragma unroll
      for (int n = 0; n < kEights; ++n) p[n] = DecodeP<Config>::load(p_rows, role.lane, n, half);
#pragma unroll
      for (int owned = 0; owned < Sizes::kOwned; ++owned) {
        if (Sizes::kColumnTiles % kTeamWarps != 0 && role.column_tile(owned) >= Sizes::kColumnTiles) continue;
        const LoadedMatrices v =
            ldmatrix_x4_transposed(VRows::behind(first, owned * kTeamWarps) + half * 32 * VRows::kPitch);
#pragma unroll
        for (int of_half = 0; of_half < 2; ++of_half) {
          const ElementPairs low = Bytes::template pairs<true>(v.matrix[of_half * 2]);
          const ElementPairs high = Bytes::template pairs<true>(v.matrix[of_half * 2 + 1]);
          const OperandA a = {{low.low, low.high, high.low, high.high}};
#pragma unroll
          for (int n = 0; n < kEights; ++n) {
            mma_add<Element>(o[owned][n], a, {{p[n].matrix[of_half * 2], p[n].matrix[of_half * 2 + 1]}});
          }
        }
      }
    }
  }

  [[nodiscard]] static __device__ __forceinline__ int column(int lane, int element) {
    return lane / 4 * 2 + element / 2;
  }
  [[nodiscard]] static __device__ __forceinline__ float value(const char* values, int key, int column) {
    const char* at = values + VRows::template place_of<1>(key, column);
    return CachedBytes<Config::kCacheElement>::to_float(*reinterpret_cast<const unsigned char*>(at));
  }
};

}  // namespace attend
