// The source text that replaces kernels/attention/custom_score.cuh in the kernels of kernels/masks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/mask_program.hpp"

namespace attend::cuda {

/// Returns `source`, which may be empty, followed by MaskCode, which describes the memory layout of the captures.
[[nodiscard]] std::string mask_text(std::string_view source, const std::vector<core::MaskCapture>& captures);

}  // namespace attend::cuda
