// Sizes of tiles in shared memory. The host computes them to request the bytes. The device computes them to lay out the
// tiles, and asserts the total.
#pragma once

#include "element_info.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kTransposedPadding = 4;  // number of floats after each row of a transposed tile, which shift rows to
                                       // other banks

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int round_up(int value, int multiple) {
  return ceil_div(value, multiple) * multiple;
}

// Returns the number of floats from one row of a tile to the next. The number is odd, so that lanes that read one
// column of different rows access different banks.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int odd_stride(int cols) {
  return cols | 1;
}

// float_bytes() returns the size of a tile of floats, and half_bytes() that of a tile of 16-bit elements, in bytes.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int float_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF32).bytes;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int half_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF16).bytes;
}

}  // namespace attend
