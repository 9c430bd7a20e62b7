// The kernels that are no lesson: what runs where no rung of the ladder supports a problem.
#pragma once

#include <span>

#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// CUDA cores, every option of the interface: simt.cpp.
[[nodiscard]] const Rung& simt_kernels();

}  // namespace attend::cuda
