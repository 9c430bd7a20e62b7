// DecodeProducts for caches of 8 bits beside a q of 16: elements become 16 bits in registers, exactly, and enter the
// products of those. A q of bf16 becomes f16 too, each row times a power of two: exact but for elements that are 2^-28
// of the row's largest and less. The caches' factors are no matter here.
//
// A register of four bytes has four neighbours of a row, where the tensor cores want two and two that lie eight apart.
// So a product of 16 columns takes them in another order, and q alike; and columns of o are numbered in pairs.
#pragma once

#include "decode_products.cuh"
#include "decode_rows.cuh"
#include "eight_bits.cuh"

namespace attend {

// Four bytes as two pairs of f16.
struct ElementPairs {
  uint32 low, high;
};

// Bytes of cached elements as numbers. pairs(): the bytes 0 and 1, and 2 and 3; kInterleaved: 0 and 2, and 1 and 3.
template <CacheElement kCache>
struct CachedBytes;

template <>
struct CachedBytes<CacheElement::kF8E4M3> {
  template <bool kInterleaved>
  [[nodiscard]] static __device__ __forceinline__ ElementPairs pairs(uint32 bytes) {
    const uint32 ordered = kInterleaved ? __byte_perm(bytes, 0, 0x3120) : bytes;
    return {halves(ordered), halves(ordered >> 16)};
  }
  // Two of f16, from the lower half of `bytes`.
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
  // As 1024 + 128 + x, whose last bits of f16 are x + 128.
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
  // As 2^23 + 128 + x, whose last bits of f32 are x + 128.
  static __device__ __forceinline__ void to_floats(uint32 bytes, float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __uint_as_float(__byte_perm(bytes ^ 0x80808080u, 0x4b000000u, 0x7650 + i)) - 8388736.0f;
    }
  }
};

// Rows of q from bf16 to f16, in place, with the largest element in [2^14, 2^15). DecodeRow::unit is the factor of a
// row's scores that this takes. By a team's warps, each of which has some rows, behind a barrier of theirs.
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
      const LoadedMatrices k = ldmatrix_x4(KRows::behind(row, depth));  // a chunk is a depth
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
