// Completes a block mask's tiles, on whichever device they were made.
#pragma once

#include "core/block_tiles.hpp"

namespace attend::mask {

/// Numbers the patterns in the order in which rows of tiles use them, and sets rows_seen, num_pairs and band. Equal
/// tiles therefore give identical bits. Requires row_begin, seen and patterns; every pattern must be in use.
void finish(core::BlockTiles& tiles);

}  // namespace attend::mask
