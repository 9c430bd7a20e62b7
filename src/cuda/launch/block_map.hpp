// A block mask as a map of its 64 x 64 tiles (kernels/attention/block_map.cuh). Kernels that do not walk tile lists
// read the map.
#pragma once

#include <vector>

#include "core/block_tiles.hpp"
#include "core/problem.hpp"

namespace attend::cuda {

/// The contents of BlockMapArgs::tiles and BlockMapArgs::patterns. `tiles` has one number for every tile, including
/// hidden tiles.
struct BlockMaskMap {
  std::vector<int> tiles = {};
  std::vector<uint64> patterns = {};

  [[nodiscard]] static BlockMaskMap of(const core::BlockTiles& tiles);
};

/// Returns the map in the memory of a GPU whose context is current. The first call for a mask builds the map, copies it
/// and waits for the copy. The map lives as long as the mask. Thread-safe.
[[nodiscard]] BlockMapArgs block_map_args(const core::BlockTiles& tiles, int device);

/// Sets OptionArgs::block_map if the problem has a block mask.
void set_block_map(OptionArgs& options, const core::Problem& p);

}  // namespace attend::cuda
