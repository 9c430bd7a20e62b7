// The element types of q, k, v and o. This file packs, rounds and reads 16-bit types as bits, so it needs no header of
// the CUDA toolkit.
//
//   using Element = ElementOf<Config>;              // Float16 or BFloat16
//   const uint32 pair = Element::pack(p[0], p[1]);  // two neighbours of a row, the first in the low half
#pragma once

#include "config_enums.cuh"
#include "element_info.cuh"
#include "portable.cuh"

namespace attend {

using Bits16 = unsigned short;  // storage of one 16-bit element

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// The type IEEE binary16. Numbers beyond 65504 are rounded to infinity.
struct Float16 {
  using Storage = Bits16;
  static constexpr ElementType kType = ElementType::kF16;
  static constexpr bool kHasPairProduct = false;

  // PTX ISA, data movement and conversion: cvt. The first source operand becomes the high half. The instruction for
  // pairs exists on sm_80 and later.
  [[nodiscard]] static __device__ __forceinline__ uint32 pack(float low, float high) {
#if __CUDA_ARCH__ >= 800
    uint32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return static_cast<uint32>(round(high)) << 16 | round(low);
#endif
  }
  [[nodiscard]] static __device__ __forceinline__ Bits16 round(float value) {
    Bits16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
  [[nodiscard]] static __device__ __forceinline__ float to_float(Bits16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  [[nodiscard]] static __device__ __forceinline__ float low(uint32 pair) {
    return to_float(static_cast<Bits16>(pair));
  }
  [[nodiscard]] static __device__ __forceinline__ float high(uint32 pair) {
    return to_float(static_cast<Bits16>(pair >> 16));
  }
};

// The type bfloat16, which is the upper half of a float32.
struct BFloat16 {
  using Storage = Bits16;
  static constexpr ElementType kType = ElementType::kBF16;
  static constexpr bool kHasPairProduct = true;  // the backward pass of sm_90 computes two products in one instruction

  [[nodiscard]] static __device__ __forceinline__ uint32 pack(float low, float high) {
#if __CUDA_ARCH__ >= 800
    uint32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return static_cast<uint32>(round(high)) << 16 | round(low);
#endif
  }
  [[nodiscard]] static __device__ __forceinline__ Bits16 round(float value) {
#if __CUDA_ARCH__ >= 800
    Bits16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    // Rounds to nearest, ties to even. A carry out of the fraction rounds the largest number to infinity. NaN is
    // handled separately, because the sum could overflow to zero
    const uint32 bits = __float_as_uint(value);
    const uint32 rounded = bits + 0x7fff + (bits >> 16 & 1);
    return static_cast<Bits16>(value == value ? rounded >> 16 : 0x7fff);
#endif
  }
  [[nodiscard]] static __device__ __forceinline__ float to_float(Bits16 bits) {
    return __uint_as_float(static_cast<uint32>(bits) << 16);
  }
  [[nodiscard]] static __device__ __forceinline__ float low(uint32 pair) {
    return __uint_as_float(pair << 16);
  }
  [[nodiscard]] static __device__ __forceinline__ float high(uint32 pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }
};

// The type float32, with the interface that kernels for all types use.
struct Float32 {
  using Storage = float;
  static constexpr ElementType kType = ElementType::kF32;

  [[nodiscard]] static __device__ __forceinline__ float round(float value) { return value; }
  [[nodiscard]] static __device__ __forceinline__ float to_float(float value) { return value; }
};

template <class Element>
constexpr bool kIsAsDescribed = int{sizeof(typename Element::Storage)} == element_info(Element::kType).bytes;
static_assert(kIsAsDescribed<Float16> && kIsAsDescribed<BFloat16> && kIsAsDescribed<Float32>);

template <ElementType kElement>
struct ElementTraits;
template <>
struct ElementTraits<ElementType::kF32> {
  using Type = Float32;
};
template <>
struct ElementTraits<ElementType::kF16> {
  using Type = Float16;
};
template <>
struct ElementTraits<ElementType::kBF16> {
  using Type = BFloat16;
};

// Element type of a kernel's tensors.
template <class Config>
using ElementOf = typename ElementTraits<Config::kElement>::Type;

// Number of elements in a 16-byte load.
template <class Config>
constexpr int kVectorElements = 16 / int{sizeof(typename ElementOf<Config>::Storage)};

// Loads a run of neighbouring elements as floats, in one load if the run has 16 bytes.
template <class Config, int kCount>
__device__ __forceinline__ void load_elements(float (&values)[kCount],
                                              const typename ElementOf<Config>::Storage* from) {
  using Element = ElementOf<Config>;
  constexpr int kBytes = int{sizeof(typename Element::Storage)};
  if constexpr (kBytes == 4 && kCount == 4) {
    const float4 chunk = __ldg(reinterpret_cast<const float4*>(from));
    values[0] = chunk.x, values[1] = chunk.y, values[2] = chunk.z, values[3] = chunk.w;
  } else if constexpr (kBytes == 2 && kCount == 8) {
    const uint4 chunk = __ldg(reinterpret_cast<const uint4*>(from));
    const uint32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[2 * i] = Element::low(pairs[i]), values[2 * i + 1] = Element::high(pairs[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = Element::to_float(__ldg(from + i));
  }
}

#endif

}  // namespace attend
