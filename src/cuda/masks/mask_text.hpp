// The source text that replaces kernels/attention/custom_score.cuh when the kernels of kernels/masks are compiled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/mask_program.hpp"

namespace attend::cuda {

/// Returns `source` followed by the struct MaskCode, which describes the memory layout of the captures. `source` may be
/// empty.
[[nodiscard]] std::string mask_text(std::string_view source, const std::vector<core::MaskCapture>& captures);

}  // namespace attend::cuda
