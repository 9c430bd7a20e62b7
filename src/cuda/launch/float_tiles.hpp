// Sizes of tiles of floats in shared memory, for the tables of the kernels on CUDA cores.
#pragma once

namespace attend::cuda {

constexpr int kTransposedPadding = 4;  ///< floats behind each row of a transposed tile (kernels/common/fp32_tile.cuh)

[[nodiscard]] constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr unsigned bytes_of(int floats) {
  return static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
}

}  // namespace attend::cuda
