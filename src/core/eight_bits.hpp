// Scalar conversions between float and the 8-bit types of caches, by bit operations. The results are the same on every
// platform and equal those of a GPU's saturating conversions. Conversions round to nearest, ties to even. A value out
// of range becomes the largest number of the same sign.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend::core {

/// An element of DType::kF8E4M3.
struct E4M3 {
  std::uint8_t bits;
};

constexpr std::uint32_t kE4M3Nan = 0x7f;
constexpr std::uint32_t kE4M3Largest = 0x7e;  // the number 448

// The functions are defined in a source file, because inlining them at every element access would add tens of
// kilobytes.

[[nodiscard]] float to_float(E4M3 x);

/// Converts to E4M3. Infinities become 448 with their sign; NaN becomes 0x7f.
[[nodiscard]] E4M3 to_e4m3(float x);

/// Converts to an integer from -128 to 127. NaN becomes 0.
[[nodiscard]] std::int8_t to_int8(float x);

/// Load and store element `at` of an f8e4m3 or i8 array.
[[nodiscard]] float load_eight_bits(const void* data, DType dtype, std::int64_t at);
void store_eight_bits(void* data, DType dtype, std::int64_t at, float value);

}  // namespace attend::core
