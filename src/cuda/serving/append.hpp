// attend::append on a GPU.
#pragma once

#include <vector>

#include "core/append_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Launches append on the stream. All tensors and arrays must be on one GPU.
/// @throws Error (kMissingHardware, kUnsupported) if the library cannot use the GPU; (kInvalidArgument) for invalid
///         entries with ATTEND_CHECK=1, which waits for the stream. Nothing is written in these cases.
void append(const core::AppendProblem& p, Stream stream);

/// Returns the specs of all append kernels, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> append_specs(const char* arch);

}  // namespace attend::cuda
