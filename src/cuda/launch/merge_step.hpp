// The kernel that merges the partial results (o and lse) of attention over disjoint sets of keys. attend::merge
// launches only this kernel. Families that split the keys among blocks launch it last.
#pragma once

#include <cstdint>

#include "cuda/jit/kernel_spec.hpp"
#include "kernels/serving/merge_args.cuh"

namespace attend::cuda {

[[nodiscard]] KernelSpec merge_step_spec(const char* arch);

/// Returns the number of blocks of the merge kernel.
/// @param num_rows  number of query rows, summed over all heads and batch entries
[[nodiscard]] std::int64_t merge_step_blocks(std::int64_t num_rows);

}  // namespace attend::cuda
