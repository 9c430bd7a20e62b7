// The backward step that computes the gradients of tensors read by a score function. Its kernel runs on CUDA cores
// after the kernels of the family. 'simt' and 'sm80_backward' share it: kernels/simt/simt_captures.cuh.
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

/// Returns the reason why no family supports the gradients of the captures: a deterministic order of sums, or gradients
/// that are not dense float32.
[[nodiscard]] std::optional<core::Lack> captured_gradients_lack(const core::Problem& p);

/// Appends the step's spec to the specs of the family.
void add_captured_spec(const Facts& facts, const Arch& arch, std::vector<KernelSpec>& specs);

/// Appends the step's grid to the grids of the family. Does nothing if no capture needs a gradient.
void add_captured_step(const core::Problem& p, Choice& choice);

/// Returns the step's estimated time in seconds.
[[nodiscard]] double captured_seconds(const core::Problem& p, const DeviceInfo& device);

/// Returns the step's arguments: the family's arguments with the exact scale.
[[nodiscard]] BackwardOptionArgs captured_args(const BackwardOptionArgs& args, const core::Problem& p);

/// Runs all steps: the family's steps, then this step, then the steps of row_logit_steps.hpp.
void run_with_captured_step(const Launch& launch, BackwardOptionArgs& args);

}  // namespace attend::cuda
