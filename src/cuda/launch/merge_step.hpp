// The kernel that merges attention over parts of the keys: a step of its own in attend::merge, and the last step of a
// family that splits keys.
#pragma once

#include <cstdint>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

[[nodiscard]] KernelSpec merge_step_spec(const char* arch);

/// @param num_rows  of all heads and batch entries
[[nodiscard]] std::int64_t merge_step_blocks(std::int64_t num_rows);

}  // namespace attend::cuda
