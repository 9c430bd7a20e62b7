// attend::merge on a GPU.
#pragma once

#include <vector>

#include "core/merge_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Launches merge on the stream. All tensors must be on one GPU.
/// @throws Error (kMissingHardware, kUnsupported) if the library cannot use the GPU. Nothing is written in this case.
void merge(const core::MergeProblem& p, Stream stream);

/// Returns the specs of all merge kernels, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> merge_specs(const char* arch);

}  // namespace attend::cuda
