// Sizes of tiles of floats in shared memory, for the tables of the kernels on CUDA cores.
#pragma once

#include "kernels/common/tile_sizes.cuh"

namespace attend::cuda {

[[nodiscard]] constexpr unsigned bytes_of(int floats) {
  return static_cast<unsigned>(floats) * static_cast<unsigned>(sizeof(float));
}

}  // namespace attend::cuda
