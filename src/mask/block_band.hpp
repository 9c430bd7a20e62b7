// Detects block masks that are windows. Kernels have special code for windows.
#pragma once

#include <optional>

#include "core/block_tiles.hpp"

namespace attend::mask {

/// Returns the window that equals the tiles, if there is one and it is the same for every head and sequence. Row i then
/// sees keys i - left to i + right, where rows and keys are both counted from 0.
[[nodiscard]] std::optional<core::BlockBand> band_of(const core::BlockTiles& tiles);

}  // namespace attend::mask
