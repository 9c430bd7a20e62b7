// The step of a backward pass that makes the gradients of tensors which a score function reads. It is a kernel
// on CUDA cores behind those of the family, the same for 'simt' and 'sm80_backward': kernels/simt/simt_captures.cuh.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/family.hpp"
#include "kernels/common/args.cuh"

namespace attend::cuda {

/// What no family has: gradients with a fixed order of sums, or of other layouts and dtypes.
[[nodiscard]] std::optional<core::Lack> captured_gradients_lack(const core::Problem& p);

/// Its spec, behind those of the family.
void add_captured_spec(const Facts& facts, const Arch& arch, std::vector<KernelSpec>& specs);

/// Its grid, behind those of the family. Nothing without such gradients.
void add_captured_step(const core::Problem& p, Choice& choice);

/// What it adds to the estimate, in seconds.
[[nodiscard]] double captured_seconds(const core::Problem& p, const DeviceInfo& device);

/// Its arguments: those of the family with the scale of exact products.
[[nodiscard]] BackwardOptionArgs captured_args(const BackwardOptionArgs& args, const core::Problem& p);

/// Runs all steps. The family's own come before it, those of
/// row_logit_steps.hpp after it.
void run_with_captured_step(const Launch& launch, BackwardOptionArgs& args);

}  // namespace attend::cuda
