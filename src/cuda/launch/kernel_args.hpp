// The parameters of kernels from a problem: fills the structs of kernels/common/args.cuh.
#pragma once

#include "core/problem.hpp"
#include "cuda/driver/driver_types.hpp"
#include "cuda/launch/rung.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

[[nodiscard]] ForwardArgs forward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace);
[[nodiscard]] BackwardArgs backward_args(const Rung& rung, const core::Problem& p, DevicePointer workspace);

/// With the maps that `step` loads by.
[[nodiscard]] ForwardTmaArgs forward_tma_args(const Step& step, const core::Problem& p, const ForwardArgs& base);

[[nodiscard]] OptionArgs option_args_of(const core::Problem& p);
[[nodiscard]] BackwardOptionArgs backward_option_args(const BackwardArgs& base, const core::Problem& p);

}  // namespace attend::cuda
