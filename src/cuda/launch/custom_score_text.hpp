// What kernels are compiled with in the place of kernels/attention/custom_score.cuh.
#pragma once

#include <string>

#include "core/custom_score.hpp"

namespace attend::cuda {

/// The function and how it reads its captures. It names headers from the kernels' root on.
[[nodiscard]] std::string custom_score_text(const core::CustomScore& score);

}  // namespace attend::cuda
