// A map of a block mask: one number for each tile of 64 query rows and 64 keys (kernels/attention/block_map.cuh).
// Kernels without a list of visible tiles look up each tile in this map.
#pragma once

#include <vector>

#include "core/block_tiles.hpp"
#include "core/problem.hpp"

namespace attend::cuda {

/// The contents of BlockMapArgs::tiles and BlockMapArgs::patterns in host memory. `tiles` contains one number for each
/// tile of 64 x 64 scores, including fully masked tiles.
struct BlockMaskMap {
  std::vector<int> tiles = {};
  std::vector<uint64> patterns = {};

  [[nodiscard]] static BlockMaskMap of(const core::BlockTiles& tiles);
};

/// Returns the address of the map in GPU memory. The GPU's context must be current. The first call for a mask builds
/// the map, copies it to the GPU and waits for the copy. The map is freed together with the mask. Thread-safe.
[[nodiscard]] BlockMapArgs block_map_args(const core::BlockTiles& tiles, int device);

/// Sets OptionArgs::block_map if the problem has a block mask; otherwise leaves it unchanged.
void set_block_map(OptionArgs& options, const core::Problem& p);

}  // namespace attend::cuda
