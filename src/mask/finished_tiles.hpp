// What follows from a block mask's tiles, wherever they were made.
#pragma once

#include "core/block_tiles.hpp"

namespace attend::mask {

/// Numbers the patterns in the order in which rows of tiles meet them, and fills rows_seen, num_pairs and band: the
/// same tiles become the same bits. row_begin, seen and patterns are there; every pattern is of some tile.
void finish(core::BlockTiles& tiles);

}  // namespace attend::mask
