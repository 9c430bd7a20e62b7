// Scalar conversions between float and the 16-bit types, by bit operations. They need no compiler extension, and the
// results are the same on every platform. Conversions round to nearest, ties to even. NaN is converted to NaN. A value
// out of range is converted to infinity.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace attend::core {

struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

[[nodiscard]] inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

[[nodiscard]] inline float to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t fraction = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or a subnormal number, whose value is fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide_exponent = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

[[nodiscard]] inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // The result is a quiet NaN with the top bits of the payload of x.
  if (std::isnan(x)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

[[nodiscard]] inline Half to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {  // the numbers below 2^-14 have a spacing of 2^-24, to which the float addition rounds
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // numbers from 0.5 on have the spacing 2^-24
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace attend::core
