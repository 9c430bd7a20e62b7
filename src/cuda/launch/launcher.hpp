// The launch code that all families share. It caches loaded kernels, and checks grids and workspaces before any launch.
#pragma once

#include <span>

#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// Returns the kernels of a variant. The first call compiles and loads them. The span stays valid until the process
/// ends.
/// @param custom_score  the problem's custom score; may be null. The variant contains its digest
[[nodiscard]] std::span<const LoadedKernel> loaded_kernels(const Family& family, const Variant& variant,
                                                           const DeviceInfo& device,
                                                           const core::CustomScore* custom_score);

/// Launches the choice's kernels on the stream. The family must support the problem.
/// @throws Error (kUnsupported) if a grid has more blocks than a GPU allows; (kInvalidArgument) if the caller's
///         workspace is too small or, with ATTEND_CHECK=1, if cu_seqlens are wrong. Nothing is launched in these cases.
void launch(const Family& family, const core::Problem& p, const Choice& choice, Stream stream);

}  // namespace attend::cuda
