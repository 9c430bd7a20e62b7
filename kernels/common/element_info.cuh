// What host and device both compute with of each element type. How kernels read and round an element: element.cuh. All
// that only the host knows of one: src/core/dtype_traits.hpp.
#pragma once

#include "config_enums.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kPanelBytes = 128;  // of a row of a panel, the unit of the copy engine's swizzle

struct ElementInfo {
  int bytes;                // 0: no element type
  ElementType accumulated;  // the type that its products are summed in
  bool has_descale;         // a tensor has factors in memory, by which its elements are multiplied as they are read
  float unit_roundoff;      // half the distance between neighbouring numbers, relative to their size
  float smallest_normal;
  bool has_float_range;  // its largest and smallest numbers are about those of float32
  int p_shift;           // kernels keep p, which is at most 1, 2^p_shift times as large: small p then survive rounding
  int64 most_keys_of_sum;  // beyond, a sum over keys on tensor cores loses more than rounding to the type does

  // Columns of a panel.
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
              .p_shift = 14,  // 65504 is the largest number
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
