// attend::merge on a GPU.
#pragma once

#include <vector>

#include "core/merge_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Puts the problem on the stream. Its tensors lie on one GPU.
/// @throws Error (kMissingHardware, kUnsupported) where the library cannot compute on it. Then nothing was written.
void merge(const core::MergeProblem& p, Stream stream);

/// Every kernel of it, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> merge_specs(const char* arch);

}  // namespace attend::cuda
