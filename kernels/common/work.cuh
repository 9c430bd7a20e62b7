// Which part of the problem a block of a one-dimensional grid works on. The host counts the same blocks:
// rung_launch.cpp.
#pragma once

#include "portable.cuh"

namespace attend {

// Blocks that cover `length` with tiles of `tile`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 num_tiles(int64 length, int64 tile) {
  return (length + tile - 1) / tile;
}

// One tile of one head. Tiles of a head are neighbours in the grid, so that they share its keys in the L2 cache.
struct HeadTile {
  uint32 batch;
  uint32 head;
  int64 tile;

  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr HeadTile of_block(uint32 block, uint32 tiles, uint32 num_heads) {
    const uint32 head_of_all = block / tiles;
    return {head_of_all / num_heads, head_of_all % num_heads, block % tiles};
  }
};

}  // namespace attend
