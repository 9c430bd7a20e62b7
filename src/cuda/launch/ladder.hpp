// The ladder: every rung that runs on a GPU, in order.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cuda/launch/rung.hpp"

namespace attend::cuda {

[[nodiscard]] std::span<const Rung> ladder();

/// The rung called `name`, or null.
[[nodiscard]] const Rung* find_rung(std::string_view name);

// The families, each in a file of its own.
[[nodiscard]] std::vector<Rung> simt_rungs();   ///< 01 to 07: rungs_simt.cpp
[[nodiscard]] std::vector<Rung> fa2_rungs();    ///< 08: rungs_fa2.cpp
[[nodiscard]] std::vector<Rung> mma_rungs();    ///< 09 to 15: rungs_mma.cpp
[[nodiscard]] std::vector<Rung> wgmma_rungs();  ///< 16 to 18: rungs_wgmma.cpp

}  // namespace attend::cuda
