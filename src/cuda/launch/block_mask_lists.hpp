// A block mask's tiles of 64 x 64 as lists of a kernel's larger tiles (kernels/attention/block_mask.cuh).
#pragma once

#include <vector>

#include "core/block_tiles.hpp"

namespace attend::cuda {

/// For tiles of `rows` rows and `keys` keys, multiples of 64: BlockMaskArgs::entries.
struct BlockMaskLists {
  std::vector<int64> begin = {};  ///< of each list: its first entry; one more: the end of the last list
  std::vector<int> entries = {};

  [[nodiscard]] static BlockMaskLists of(const core::BlockTiles& tiles, int rows, int keys);

  /// For blocks of `keys` keys, of the tiles of 64 rows that see them. heads: query heads that share a head of k; their
  /// tiles are in one list. is_persistent: of the kernel, for the order in which blocks add to a tile of rows.
  [[nodiscard]] static BlockMaskLists by_keys(const core::BlockTiles& tiles, int keys, int heads, bool is_persistent);
};

/// BlockMaskArgs::patterns: bit i of word `thread` is the score that the thread has at place i of an accumulator, whose
/// rows are keys if it is transposed.
[[nodiscard]] std::vector<uint32> pattern_words(const core::BlockTiles& tiles, bool transposed = false);

/// The lists in the memory of a GPU, whose context is current. The first call for a mask and a kind of tile makes them
/// and waits for a copy; they stay as long as the mask. Thread-safe.
[[nodiscard]] BlockMaskArgs block_mask_args(const core::BlockTiles& tiles, int device, int rows, int keys);

/// The same for backward, of BlockMaskLists::by_keys().
[[nodiscard]] BlockMaskArgs block_mask_args_by_keys(const core::BlockTiles& tiles, int device, int keys, int heads,
                                                    bool is_persistent);

}  // namespace attend::cuda
