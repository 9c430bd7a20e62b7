// Properties of each element type that host and device use. Reading and rounding in kernels: element.cuh. Properties
// that only the host uses: src/core/dtype_traits.hpp.
#pragma once

#include "config_enums.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kPanelBytes = 128;  // bytes of a panel's row, the unit of the copy engine's swizzle

struct ElementInfo {
  int bytes;                // 0: not an element type
  ElementType accumulated;  // the type in which its products are summed
  bool has_descale;         // a tensor has factors in memory, which multiply its elements when they are read
  float unit_roundoff;      // half the distance between neighbouring numbers, relative to their size
  float smallest_normal;
  bool has_float_range;    // the range is about that of float32
  int p_shift;             // kernels keep p, which is at most 1, 2^p_shift times as large, so that small p survive
                           // rounding
  int64 most_keys_of_sum;  // with more keys, a sum on tensor cores loses more than rounding to the type does

  // Returns the columns of a panel.
  [[nodiscard]] ATTEND_HOST_DEVICE constexpr int panel_columns() const { return kPanelBytes / bytes; }
};

[[nodiscard]] ATTEND_HOST_DEVICE constexpr ElementInfo element_info(ElementType element) {
  switch (element) {
    case ElementType::kF32:
      return {.bytes = 4,
              .accumulated = ElementType::kF32,
              .has_descale = false,
              .unit_roundoff = 0x1p-24f,
              .smallest_normal = 0x1p-126f,
              .has_float_range = true,
              .p_shift = 24,
              .most_keys_of_sum = int64{1} << 19};
    case ElementType::kF16:
      return {.bytes = 2,
              .accumulated = ElementType::kF32,
              .has_descale = false,
              .unit_roundoff = 0x1p-11f,
              .smallest_normal = 0x1p-14f,
              .has_float_range = false,
              .p_shift = 14,  // the largest number is 65504
              .most_keys_of_sum = int64{1} << 16};
    case ElementType::kBF16:
      return {.bytes = 2,
              .accumulated = ElementType::kF32,
              .has_descale = false,
              .unit_roundoff = 0x1p-8f,
              .smallest_normal = 0x1p-126f,
              .has_float_range = true,
              .p_shift = 24,
              .most_keys_of_sum = int64{1} << 19};
  }
  return {};
}

}  // namespace attend
