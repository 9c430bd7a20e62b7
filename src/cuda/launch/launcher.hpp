// The launch code that all families share. It caches loaded kernels. It checks grid sizes and workspaces before the
// first launch of a call.
#pragma once

#include <span>

#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// Returns the loaded kernels of a variant. The first call for a variant compiles and loads them. The returned span
/// stays valid until the process ends.
/// @param custom_score  the problem's custom score, or null. Its digest must be part of `variant`
[[nodiscard]] std::span<const LoadedKernel> loaded_kernels(const Family& family, const Variant& variant,
                                                           const DeviceInfo& device,
                                                           const core::CustomScore* custom_score);

/// Launches the kernels of `choice` on the stream. The family must support the problem.
/// @throws Error (kUnsupported) if a grid has more blocks than a GPU allows. Error (kInvalidArgument) if the caller's
///         workspace is too small, or if ATTEND_CHECK=1 is set and cu_seqlens are invalid. No kernel is launched if an
///         error is thrown.
void launch(const Family& family, const core::Problem& p, const Choice& choice, Stream stream);

}  // namespace attend::cuda
