// Block masks that are windows: kernels have code of their own for those.
#pragma once

#include <optional>

#include "core/block_tiles.hpp"

namespace attend::mask {

/// The window that the tiles are, of every head and sequence alike: which keys from row - left to row + right are seen,
/// both counted from the first. None: they are something else.
[[nodiscard]] std::optional<core::BlockBand> band_of(const core::BlockTiles& tiles);

}  // namespace attend::mask
