// The GPU implementation of attend::append, which writes new keys and values to a cache.
#pragma once

#include <vector>

#include "core/append_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Launches the append kernel on the stream. All tensors and index arrays must be on the same GPU.
/// @throws Error (kMissingHardware, kUnsupported) if the library cannot use the GPU. Error (kInvalidArgument) if
///         ATTEND_CHECK=1 is set and an index array has invalid values; this check waits for the stream. If an error is
///         thrown, nothing is written.
void append(const core::AppendProblem& p, Stream stream);

/// Returns the specs of all append kernels. Used by `attend compile` and by the tests.
[[nodiscard]] std::vector<KernelSpec> append_specs(const char* arch);

}  // namespace attend::cuda
