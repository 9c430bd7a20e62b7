// Powers of two by which the sm90 backward pass scales p and ds. Shared by host and device.
#pragma once

#include "../common/element_info.cuh"
#include "../common/portable.cuh"

namespace attend {

// The kernels compute p times 2^p_bits, and a factor at the end removes this scale. Without it, small entries of p
// would round to 0 before the products, and gradients of keys with little weight would vanish. p is at most 1 except
// for rounding, so the scaled p stays below the float16 limit of 65504. bfloat16 has the range of float. ds is scaled
// by 2^ds_bits. For float16 ds_bits is 0, because large values of dout and v can already make ds large.
struct Sm90BackwardUnits {
  int p_bits;
  int ds_bits;
};
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardUnits sm90_backward_units(ElementType element) {
  const ElementInfo info = element_info(element);
  return {info.p_shift, info.has_float_range ? info.p_shift : 0};
}
// Returns 2^-bits.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr float sm90_backward_unit(int bits) {
  return 1.0f / static_cast<float>(1 << bits);
}

}  // namespace attend
