#include "core/eight_bits.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace attend::core {

float to_float(E4M3 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80u) << 24;
  const std::uint32_t magnitude = x.bits & 0x7fu;
  if (magnitude == kE4M3Nan) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // zero or a subnormal number, whose value is fraction * 2^-9
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

E4M3 to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint8_t>(kE4M3Nan)};
  if (magnitude >= 0x43e00000u) return {static_cast<std::uint8_t>(sign | kE4M3Largest)};  // 448
  if (magnitude < 0x3c800000u) {  // the numbers below 2^-6 have a spacing of 2^-9, to which the float addition rounds
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;  // numbers from 2^14 on have the spacing 2^-9
    return {static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u))};
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return {static_cast<std::uint8_t>(sign | ((rounded - ((127u - 7u) << 23)) >> 20))};
}

std::int8_t to_int8(float x) {
  if (std::isnan(x)) return 0;
  return static_cast<std::int8_t>(std::nearbyint(std::clamp(x, -128.0f, 127.0f)));
}

float load_eight_bits(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kI8) return static_cast<const std::int8_t*>(data)[at];
  return to_float(static_cast<const E4M3*>(data)[at]);
}

void store_eight_bits(void* data, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::kI8) {
    static_cast<std::int8_t*>(data)[at] = to_int8(value);
  } else {
    static_cast<E4M3*>(data)[at] = to_e4m3(value);
  }
}

}  // namespace attend::core
