// What all families have in common on the way to the stream: loaded kernels are kept, grids and workspaces are looked
// at before anything is launched.
#pragma once

#include <span>

#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// The kernels of a variant, compiled and loaded by the first call. The span stays good for ever.
/// @param custom_score  of the problem; may be null. The variant has its digest
[[nodiscard]] std::span<const LoadedKernel> loaded_kernels(const Family& family, const Variant& variant,
                                                           const DeviceInfo& device,
                                                           const core::CustomScore* custom_score);

/// Puts the choice's kernels on the stream. The problem is one that the family does not lack anything for.
/// @throws Error (kUnsupported) where a grid has more blocks than a GPU takes; (kInvalidArgument) for a caller's
///         workspace that is too small, and with ATTEND_CHECK=1 for wrong cu_seqlens. Then nothing was launched.
void launch(const Family& family, const core::Problem& p, const Choice& choice, Stream stream);

}  // namespace attend::cuda
