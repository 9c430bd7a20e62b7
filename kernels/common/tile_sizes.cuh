// Sizes of tiles in shared memory that host and device compute. The host uses them to request the bytes. The device
// lays the tiles out, and asserts the total.
#pragma once

#include "element_info.cuh"
#include "portable.cuh"

namespace attend {

constexpr int kTransposedPadding = 4;  // floats after each row of a transposed tile, which shift the banks

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int ceil_div(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr int round_up(int value, int multiple) {
  return ceil_div(value, multiple) * multiple;
}

// Returns the floats from one row of a tile to the next. The number is odd, so lanes that read one column of different
// rows access different banks.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int odd_stride(int cols) {
  return cols | 1;
}

// Bytes of a tile of floats (float_bytes), and of a tile of 16-bit elements (half_bytes).
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int float_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF32).bytes;
}
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int half_bytes(int rows, int cols) {
  return rows * cols * element_info(ElementType::kF16).bytes;
}

}  // namespace attend
