// Scalar conversions between float and the 8-bit types of caches, by bits: the same result everywhere, and what a GPU's
// saturating conversions give. Round to nearest, ties to even; what lies beyond the largest number becomes that.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend::core {

/// DType::kF8E4M3.
struct E4M3 {
  std::uint8_t bits;
};

constexpr std::uint32_t kE4M3Nan = 0x7f;
constexpr std::uint32_t kE4M3Largest = 0x7e;  // 448

// In a file of their own: inlined wherever an element is read or written, they took tens of kilobytes.

[[nodiscard]] float to_float(E4M3 x);

/// Infinities become 448 with their sign, NaN 0x7f.
[[nodiscard]] E4M3 to_e4m3(float x);

/// From -128 to 127. NaN becomes 0.
[[nodiscard]] std::int8_t to_int8(float x);

/// Element `at` of f8e4m3 or i8.
[[nodiscard]] float load_eight_bits(const void* data, DType dtype, std::int64_t at);
void store_eight_bits(void* data, DType dtype, std::int64_t at, float value);

}  // namespace attend::core
