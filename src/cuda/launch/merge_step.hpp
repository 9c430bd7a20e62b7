// The kernel that merges attention over parts of the keys. attend::merge launches it alone. For a family that splits
// keys it is the last step.
#pragma once

#include <cstdint>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

[[nodiscard]] KernelSpec merge_step_spec(const char* arch);

/// @param num_rows  rows of all heads and batch entries
[[nodiscard]] std::int64_t merge_step_blocks(std::int64_t num_rows);

}  // namespace attend::cuda
