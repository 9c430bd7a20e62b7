// A block mask's tiles of 64 x 64 as lists of a kernel's larger tiles (kernels/attention/block_mask.cuh).
#pragma once

#include <vector>

#include "core/block_tiles.hpp"

namespace attend::cuda {

/// For tiles of `rows` rows and `keys` keys, multiples of 64: BlockMaskArgs::begin and entries.
struct BlockMaskLists {
  std::vector<int64> begin = {};
  std::vector<int> entries = {};

  [[nodiscard]] static BlockMaskLists of(const core::BlockTiles& tiles, int rows, int keys);
};

/// BlockMaskArgs::patterns: bit i of word `thread` is the score that the thread has at place i of an accumulator.
[[nodiscard]] std::vector<uint32> pattern_words(const core::BlockTiles& tiles);

/// The lists in the memory of a GPU, whose context is current. The first call for a mask and a kind of tile makes them
/// and waits for a copy; they stay as long as the mask. Thread-safe.
[[nodiscard]] BlockMaskArgs block_mask_args(const core::BlockTiles& tiles, int device, int rows, int keys);

}  // namespace attend::cuda
