// Sizes that host and device both compute of tiles in shared memory: the host to ask for the bytes, the device to lay
// them out and to assert that they are as many.
#pragma once

#include "element_info.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kTransposedPadding = 4;  // floats behind each row of a transposed tile: they shift the banks

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int round_up(int value, int multiple) {
  return ceil_div(value, multiple) * multiple;
}

// Floats from one row of a tile to the next, such that lanes that read one column of different rows meet different
// banks: an odd number.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int odd_stride(int cols) {
  return cols | 1;
}

// Bytes of a tile of floats, and of one of 16-bit elements.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int float_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF32).bytes;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int half_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF16).bytes;
}

}  // namespace attend
