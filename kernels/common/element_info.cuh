// Properties of each element type that host and device use. Kernels read and round elements by element.cuh.
// src/core/dtype_traits.hpp has properties that only the host uses.
#pragma once

#include "config_enums.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kPanelBytes = 128;  // size of a panel's row, which is the unit of the copy engine's swizzle

struct ElementInfo {
  int bytes;                // size of an element. 0 if it is not an element type
  ElementType accumulated;  // type in which products of elements are summed
  bool has_descale;         // whether a tensor has descale factors in memory, by which its elements are multiplied when
                            // they are read
  float unit_roundoff;      // largest relative error of rounding a number to the type
  float smallest_normal;
  bool has_float_range;    // whether the range is about that of float32
  int p_shift;             // kernels store p, which is at most 1, multiplied by 2^p_shift, so that small p are not
                           // rounded to 0
  int64 most_keys_of_sum;  // largest number of keys that a sum on tensor cores may have. With more keys, truncation
                           // would cost more accuracy than rounding to the type

  // Returns the number of columns of a panel.
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
