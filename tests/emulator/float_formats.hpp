// Conversions between float and the formats of GPU registers: float16, bfloat16 and e4m3.
#pragma once

#include "cuda_words.hpp"

namespace emulated {

inline unsigned short to_half(float x) {
  return std::bit_cast<unsigned short>(static_cast<_Float16>(x));
}
inline float from_half(unsigned short bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
inline unsigned short to_bfloat(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bfloat(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
inline float from_e4m3(unsigned byte) {
  const unsigned magnitude = byte & 0x7f;
  float x = magnitude < 8
                ? static_cast<float>(magnitude) * 0x1p-9f
                : std::ldexp(1.0f + static_cast<float>(magnitude & 7) / 8, static_cast<int>(magnitude >> 3) - 7);
  if (magnitude == 0x7f) x = NAN;
  return byte & 0x80 ? -x : x;
}

// Rounds to nearest, ties to even. Numbers out of range become 448 with their sign.
inline unsigned to_e4m3(float x) {
  constexpr float kLargest = 448, kSmallestNormal = 0x1p-6f;
  if (x != x) return 0x7f;
  const unsigned sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= kLargest) return sign | 0x7e;
  if (magnitude < kSmallestNormal) return sign | static_cast<unsigned>(std::nearbyint(magnitude * 0x1p9f));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);                    // from 1/2 to 1
  const auto eighths = static_cast<unsigned>(std::nearbyint(fraction * 16));  // from 8 to 16
  return sign | (static_cast<unsigned>(exponent - 1 + 7) * 8 + eighths - 8);
}

}  // namespace emulated
