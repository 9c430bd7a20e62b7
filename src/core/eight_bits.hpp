// Scalar conversions between float and the 8-bit types of caches, by bits: the same result everywhere, and what a GPU's
// saturating conversions give. Round to nearest, ties to even; what lies beyond the largest number becomes that.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace attend::core {

/// DType::kF8E4M3.
struct E4M3 {
  std::uint8_t bits;
};

constexpr std::uint32_t kE4M3Nan = 0x7f;
constexpr std::uint32_t kE4M3Largest = 0x7e;  // 448

[[nodiscard]] inline float to_float(E4M3 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80u) << 24;
  const std::uint32_t magnitude = x.bits & 0x7fu;
  if (magnitude == kE4M3Nan) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // zero or subnormal: fraction * 2^-9
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

/// Infinities become 448 with their sign, NaN 0x7f.
[[nodiscard]] inline E4M3 to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint8_t>(kE4M3Nan)};
  if (magnitude >= 0x43e00000u) return {static_cast<std::uint8_t>(sign | kE4M3Largest)};  // 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: the hardware's own rounding at the subnormal spacing 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;  // 2^14 has the spacing 2^-9 in its binade
    return {static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u))};
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return {static_cast<std::uint8_t>(sign | ((rounded - ((127u - 7u) << 23)) >> 20))};
}

/// From -128 to 127. NaN becomes 0.
[[nodiscard]] inline std::int8_t to_int8(float x) {
  if (std::isnan(x)) return 0;
  return static_cast<std::int8_t>(std::nearbyint(std::clamp(x, -128.0f, 127.0f)));
}

}  // namespace attend::core
