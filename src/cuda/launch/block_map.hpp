// A block mask as a map of its tiles of 64 x 64 (kernels/attention/block_map.cuh), for kernels that walk over no lists.
#pragma once

#include <vector>

#include "core/block_tiles.hpp"
#include "core/problem.hpp"

namespace attend::cuda {

/// BlockMapArgs::tiles and patterns. It has a number for each tile, also for those that nobody sees.
struct BlockMaskMap {
  std::vector<int> tiles = {};
  std::vector<uint64> patterns = {};

  [[nodiscard]] static BlockMaskMap of(const core::BlockTiles& tiles);
};

/// The map in the memory of a GPU, whose context is current. The first call for a mask makes it and waits for a copy.
/// It stays as long as the mask. Thread-safe.
[[nodiscard]] BlockMapArgs block_map_args(const core::BlockTiles& tiles, int device);

/// OptionArgs::block_map, if the problem has a block mask.
void set_block_map(OptionArgs& options, const core::Problem& p);

}  // namespace attend::cuda
