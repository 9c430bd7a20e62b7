// Detects block masks that are windows, for which kernels have special code.
#pragma once

#include <optional>

#include "core/block_tiles.hpp"

namespace attend::mask {

/// Returns the window that equals the tiles, if it exists and is the same for every head and sequence: a row sees keys
/// from row - left to row + right, both counted from the first.
[[nodiscard]] std::optional<core::BlockBand> band_of(const core::BlockTiles& tiles);

}  // namespace attend::mask
