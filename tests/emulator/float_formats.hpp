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

}  // namespace emulated
