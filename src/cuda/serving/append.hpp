// attend::append on a GPU.
#pragma once

#include <vector>

#include "core/append_problem.hpp"
#include "cuda/jit/kernel_spec.hpp"

namespace attend::cuda {

/// Puts the problem on the stream. Its tensors and arrays lie on one GPU.
/// @throws Error (kMissingHardware, kUnsupported) where the library cannot compute on it; with ATTEND_CHECK=1
///         (kInvalidArgument) for entries at fault, which it waits for the stream for. Then nothing was written.
void append(const core::AppendProblem& p, Stream stream);

/// Every kernel of it, for `attend compile` and the tests.
[[nodiscard]] std::vector<KernelSpec> append_specs(const char* arch);

}  // namespace attend::cuda
