// Lists of the visible tiles of a block mask (kernels/attention/block_mask.cuh). The block mask describes tiles of 64
// query rows and 64 keys. The lists describe the larger tiles that a kernel processes.
#pragma once

#include <vector>

#include "core/block_tiles.hpp"

namespace attend::cuda {

/// Lists for row tiles of `rows` query rows. Each list contains the key tiles of `keys` keys that the row tile sees.
/// `rows` and `keys` are multiples of 64.
struct BlockMaskLists {
  /// Index in `entries` of the first entry of each list. One more element marks the end of the last list.
  std::vector<int64> begin = {};
  std::vector<int> entries = {};

  [[nodiscard]] static BlockMaskLists of(const core::BlockTiles& tiles, int rows, int keys);

  /// Returns one list for each block of `keys` keys. The list contains the tiles of 64 query rows that see the block.
  /// @param heads          number of query heads that share a key head. One list contains the row tiles of all these
  ///         heads
  /// @param is_persistent  whether the kernel is persistent. This determines the order in which key blocks add to the
  ///         dq of a row tile
  [[nodiscard]] static BlockMaskLists by_keys(const core::BlockTiles& tiles, int keys, int heads, bool is_persistent);
};

/// Returns BlockMaskArgs::patterns: one bit per score of a 64 x 64 tile that is partly masked. Bit i of word `thread`
/// is set if the score at position i of that thread's accumulator is visible.
/// @param transposed  whether the rows of the accumulator are keys
[[nodiscard]] std::vector<uint32> pattern_words(const core::BlockTiles& tiles, bool transposed = false);

/// Returns the addresses of the lists in GPU memory. The GPU's context must be current. The first call for a mask and a
/// tile size builds the lists, copies them to the GPU and waits for the copy. The lists are freed together with the
/// mask. Thread-safe.
[[nodiscard]] BlockMaskArgs block_mask_args(const core::BlockTiles& tiles, int device, int rows, int keys);

/// Returns the addresses of the lists of BlockMaskLists::by_keys(), for a backward pass. The lists are built, copied
/// and freed as in block_mask_args().
[[nodiscard]] BlockMaskArgs block_mask_args_by_keys(const core::BlockTiles& tiles, int device, int keys, int heads,
                                                    bool is_persistent);

}  // namespace attend::cuda
