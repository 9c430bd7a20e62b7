// The powers of two that p and ds of the sm90 backward pass are scaled by. Host and device.
#pragma once

#include "../common/element_info.cuh"
#include "../common/portable.cuh"

namespace attend {

// p is computed 2^p_bits times too large, and factors at the end undo it. Otherwise small entries of p would become 0
// when p is rounded for the products, and the gradients of keys with little weight would vanish. p is at most 1 except
// for rounding, so that it stays below float16's 65504; bfloat16 has float's range. ds is 2^ds_bits too large. Float16
// has no room for that, because dout and v can make ds large.
struct Sm90BackwardUnits {
  int p_bits;
  int ds_bits;
};
[[nodiscard]] ATTEND_HOST_DEVICE constexpr Sm90BackwardUnits sm90_backward_units(ElementType element) {
  const ElementInfo info = element_info(element);
  return {info.p_shift, info.has_float_range ? info.p_shift : 0};
}
// 2^-bits
[[nodiscard]] ATTEND_HOST_DEVICE constexpr float sm90_backward_unit(int bits) {
  return 1.0f / static_cast<float>(1 << bits);
}

}  // namespace attend
