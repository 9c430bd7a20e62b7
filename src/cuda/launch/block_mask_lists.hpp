// Lists of a kernel's larger tiles, made from a block mask's 64 x 64 tiles (kernels/attention/block_mask.cuh).
#pragma once

#include <vector>

#include "core/block_tiles.hpp"

namespace attend::cuda {

/// BlockMaskArgs::entries for tiles of `rows` rows and `keys` keys; each is a multiple of 64.
struct BlockMaskLists {
  /// Index of each list's first entry, followed by the end of the last list.
  std::vector<int64> begin = {};
  std::vector<int> entries = {};

  [[nodiscard]] static BlockMaskLists of(const core::BlockTiles& tiles, int rows, int keys);

  /// Makes one list per block of `keys` keys: the 64-row tiles that see the block. `heads` is the number of query heads
  /// that share a key head; their tiles are in one list. `is_persistent` states whether the kernel is persistent, which
  /// determines the order in which key blocks add to a row tile.
  [[nodiscard]] static BlockMaskLists by_keys(const core::BlockTiles& tiles, int keys, int heads, bool is_persistent);
};

/// Returns BlockMaskArgs::patterns. Bit i of word `thread` is set if the score at position i of the thread's
/// accumulator is visible. If `transposed`, the accumulator's rows are keys.
[[nodiscard]] std::vector<uint32> pattern_words(const core::BlockTiles& tiles, bool transposed = false);

/// Returns the lists in the memory of a GPU whose context is current. The first call for a mask and a kind of tile
/// builds the lists, copies them and waits for the copy. The lists live as long as the mask. Thread-safe.
[[nodiscard]] BlockMaskArgs block_mask_args(const core::BlockTiles& tiles, int device, int rows, int keys);

/// Returns the lists of BlockMaskLists::by_keys() for a backward pass; otherwise like block_mask_args().
[[nodiscard]] BlockMaskArgs block_mask_args_by_keys(const core::BlockTiles& tiles, int device, int keys, int heads,
                                                    bool is_persistent);

}  // namespace attend::cuda
