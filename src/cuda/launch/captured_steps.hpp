// The backward kernel that computes the gradients of captures. Captures are the tensors that a custom score function
// reads. This kernel runs on CUDA cores after all other kernels of the backward pass. The families 'simt' and
// 'sm80_backward' share it: kernels/simt/simt_captures.cuh.
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

/// Returns the reason why no family supports the gradients of the captures, or nothing. Deterministic sums are
/// unsupported, and so are gradients that are not contiguous float32 tensors.
[[nodiscard]] std::optional<core::Lack> captured_gradients_lack(const core::Problem& p);

/// Appends the spec of this kernel to the kernel specs of a family. Does nothing if the problem needs no gradient of a
/// capture.
void add_captured_spec(const Facts& facts, const Arch& arch, std::vector<KernelSpec>& specs);

/// Appends the grid of this kernel to the grids of a family. Does nothing if the problem needs no gradient of a
/// capture.
void add_captured_step(const core::Problem& p, Choice& choice);

/// Returns the estimated time of this kernel in seconds.
[[nodiscard]] double captured_seconds(const core::Problem& p, const DeviceInfo& device);

/// Returns the arguments of this kernel. They are the arguments of the family, except for the softmax scale. The scale
/// is that of the problem, with its sign and without made_up_for_cut_off().
[[nodiscard]] BackwardOptionArgs captured_args(const BackwardOptionArgs& args, const core::Problem& p);

/// Launches the kernels of the family, then this kernel, then the kernels of row_logit_steps.hpp.
void run_with_captured_step(const Launch& launch, BackwardOptionArgs& args);

}  // namespace attend::cuda
