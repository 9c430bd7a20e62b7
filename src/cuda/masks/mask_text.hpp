// What the kernels of kernels/masks are compiled with in the place of kernels/attention/custom_score.cuh.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/mask_program.hpp"

namespace attend::cuda {

/// MaskCode, how the captures' elements lie in memory, and before it `source`, which may be empty.
[[nodiscard]] std::string mask_text(std::string_view source, const std::vector<core::MaskCapture>& captures);

}  // namespace attend::cuda
