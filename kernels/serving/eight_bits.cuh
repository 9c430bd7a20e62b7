// The 8-bit element types of caches, with the interface of the types in common/element.cuh. Results are bit-identical
// to those of src/core/eight_bits.cpp. Numbers are rounded to nearest, ties to even, and saturate at the largest
// number.
#pragma once

#include "../common/numbers.cuh"
#include "../common/portable.cuh"

namespace attend {

using Bits8 = unsigned char;  // storage of one 8-bit element

// A type with a sign bit, 4 exponent bits and 3 fraction bits. It has no infinity. NaN is 0x7f or 0xff.
struct Float8E4M3 {
  using Storage = Bits8;
  static constexpr uint32 kNan = 0x7f;
  static constexpr uint32 kLargest = 0x7e;  // 448

  // Rounds a float. An infinity becomes 448 with its sign, and NaN becomes 0x7f.
  [[nodiscard]] static __device__ __forceinline__ Storage round(float value) {
#if __CUDA_ARCH__ >= 890
    // PTX ISA, data movement and conversion: cvt. The first source becomes the high byte.
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return static_cast<Storage>(value == value ? pair & 0xff : kNan);
#else
    const uint32 bits = __float_as_uint(value);
    const uint32 sign = bits >> 24 & 0x80u;
    const uint32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<Storage>(kNan);
    if (magnitude >= 0x43e00000u) return static_cast<Storage>(sign | kLargest);
    if (magnitude < 0x3c800000u) {  // Below 2^-6, adding 2^14 rounds to multiples of 2^-9, which is the spacing of
                                    // subnormal numbers
      const float shifted = __fadd_rn(__uint_as_float(magnitude), 16384.0f);
      return static_cast<Storage>(sign | (__float_as_uint(shifted) - 0x46800000u));
    }
    const uint32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return static_cast<Storage>(sign | (rounded - (120u << 23)) >> 20);
#endif
  }

  [[nodiscard]] static __device__ __forceinline__ float to_float(Storage bits) {
    const uint32 sign = static_cast<uint32>(bits & 0x80u) << 24;
    const uint32 magnitude = bits & 0x7fu;
    if (magnitude == kNan) return __uint_as_float(sign | 0x7fc00000u);
    // Forms a float whose exponent is too small by 120, and multiplies it by 2^120. The product is exact, also for
    // subnormal inputs.
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 20) * 0x1p120f));
  }
};

// Integers from -128 to 127. NaN becomes 0.
struct Int8 {
  using Storage = signed char;

  [[nodiscard]] static __device__ __forceinline__ Storage round(float value) {
    const int number = __float2int_rn(fminf(fmaxf(value, -128.0f), 127.0f));
    return static_cast<Storage>(value == value ? number : 0);
  }
  [[nodiscard]] static __device__ __forceinline__ float to_float(Storage bits) { return static_cast<float>(bits); }
};

}  // namespace attend
