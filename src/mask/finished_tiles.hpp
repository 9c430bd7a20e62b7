// Completes the tiles of a block mask that were made on a CPU or a GPU.
#pragma once

#include "core/block_tiles.hpp"

namespace attend::mask {

/// Numbers the patterns in the order in which rows of tiles use them, and sets rows_seen, num_pairs and band. Equal
/// tiles therefore have identical bits. row_begin, seen and patterns must be set, and every pattern must be in use.
void finish(core::BlockTiles& tiles);

}  // namespace attend::mask
