// Maps the blocks of a one-dimensional grid to parts of the problem. Blocks start in the order of their index. The host
// counts the same blocks.
//
// If tiles differ in work, as under a causal mask, long tiles start first, and short ones fill the gaps at the end.
// With this order over all heads at once, only a few blocks of each head run at a time. The L2 cache then evicts the
// head's keys between its blocks, and each block reads them from memory again. So kernels that are limited by memory
// use this order within sections of heads. A section has at most as many heads as fit into the L2 cache with their
// keys, or kSectionHeads if fewer fit.
#pragma once

#include "../common/portable.cuh"

namespace attend {

// Returns the number of tiles of size `tile` that cover `length`.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr int64 num_tiles(int64 length, int64 tile) {
  return (length + tile - 1) / tile;
}

// One tile of one head.
struct HeadTile {
  uint32 batch;
  uint32 head;
  int64 tile;

  // Tiles of a head are neighbours in the grid, so that they share its keys in the L2 cache.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr HeadTile of_block(uint32 block, uint32 tiles, uint32 num_heads) {
    const uint32 head_of_all = block / tiles;
    return {head_of_all / num_heads, head_of_all % num_heads, block % tiles};
  }
};

// Neighbouring blocks have the same tile of all heads: the lowest tiles of the entire grid start first.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile tile_by_tile(uint32 block, uint32 batch, uint32 num_heads) {
  const uint32 head_of_all = block % (batch * num_heads);
  return {head_of_all / num_heads, head_of_all % num_heads, block / (batch * num_heads)};
}

constexpr int64 kSectionBytes = 32 << 20;  // bytes of k and v: less than the L2 cache of an H200 (50 MB) or A100 (40
                                           // MB)
constexpr uint32 kSectionHeads = 16;       // heads that share the GPU: 16 blocks for each head on 132 multiprocessors
                                           // with two blocks each

// Returns the number of heads of a section; sections are as equal as possible. bytes_per_head: of k and v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 section_heads(uint32 all_heads, int64 bytes_per_head) {
  // Uses 32 bits, because each block divides before its first load, and a 64-bit division takes hundreds of clocks.
  const int64 known = bytes_per_head < 1 ? 1 : bytes_per_head > kSectionBytes ? kSectionBytes : bytes_per_head;
  const uint32 fitting = static_cast<uint32>(kSectionBytes) / static_cast<uint32>(known);
  const uint32 most = fitting > kSectionHeads ? fitting : kSectionHeads;
  const uint32 sections = (all_heads + most - 1) / most;
  return (all_heads + sections - 1) / sections;
}

// Goes section by section, with `section` heads in each. A section has the first tile of all its heads, then the
// second, and so on.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile in_sections(uint32 block, uint32 tiles, uint32 all_heads,
                                                                uint32 num_heads, uint32 section) {
  const uint32 first_head = block / (section * tiles) * section;
  const uint32 rest = block % (section * tiles);
  const uint32 heads = all_heads - first_head < section ? all_heads - first_head : section;
  const uint32 head = first_head + rest % heads;
  return {head / num_heads, head % num_heads, rest / heads};
}

// As in_sections(), but with the last tiles first, which are the longest of a head's row tiles.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile longest_first_in_sections(uint32 block, uint32 tiles,
                                                                              uint32 all_heads, uint32 num_heads,
                                                                              uint32 section) {
  const HeadTile at = in_sections(block, tiles, all_heads, num_heads, section);
  return {at.batch, at.head, static_cast<int64>(tiles) - 1 - at.tile};
}

[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile longest_first(uint32 block, uint32 tiles, uint32 batch,
                                                                  uint32 num_heads, int64 bytes_per_head) {
  const uint32 all_heads = batch * num_heads;
  return longest_first_in_sections(block, tiles, all_heads, num_heads, section_heads(all_heads, bytes_per_head));
}

}  // namespace attend
