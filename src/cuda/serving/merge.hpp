// The GPU implementation of attend::merge, which merges partial results of attention.
#pragma once

#include <vector>

#include "core/merge_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Launches the merge kernels on the stream. All tensors must be on the same GPU.
/// @throws Error (kMissingHardware, kUnsupported) if the library cannot use the GPU. If an error is thrown, nothing is
///         written.
void merge(const core::MergeProblem& p, Stream stream);

/// Returns the specs of all merge kernels. Used by `attend compile` and by the tests.
[[nodiscard]] std::vector<KernelSpec> merge_specs(const char* arch);

}  // namespace attend::cuda
