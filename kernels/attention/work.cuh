// Maps the blocks of a one-dimensional grid to parts of the problem. Blocks start in the order of their index. The host
// computes the same number of blocks.
//
// If tiles differ in work, as under a causal mask, long tiles start first, and short tiles fill the gaps at the end. If
// this order covered all heads at once, only a few blocks of each head would run at a time. The L2 cache would evict
// the head's keys before the head's next block runs, so each block would read them from memory again. So kernels that
// are limited by memory use this order within sections of heads. A section has at most as many heads as the L2 cache
// has room for with their keys and values. If the cache has room for fewer than kSectionHeads heads, a section has up
// to kSectionHeads.
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

  // Maps a block so that tiles of a head are neighbours in the grid. They then share the head's keys in the L2 cache.
  [[nodiscard]] static ATTEND_HOST_DEVICE constexpr HeadTile of_block(uint32 block, uint32 tiles, uint32 num_heads) {
    const uint32 head_of_all = block / tiles;
    return {head_of_all / num_heads, head_of_all % num_heads, block % tiles};
  }
};

// Maps a block so that neighbouring blocks have the same tile of all heads. The lowest tiles of all heads start first.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile tile_by_tile(uint32 block, uint32 batch, uint32 num_heads) {
  const uint32 head_of_all = block % (batch * num_heads);
  return {head_of_all / num_heads, head_of_all % num_heads, block / (batch * num_heads)};
}

constexpr int64 kSectionBytes = 32 << 20;  // bytes of k and v, less than the L2 cache of an H200 (50 MB) or an A100 (40
                                           // MB)
constexpr uint32 kSectionHeads = 16;       // A GPU with 132 multiprocessors and two blocks on each then runs 16 blocks
                                           // of each head

// Returns the number of heads in a section. Sections are as equal as possible. `bytes_per_head` is the size of k and v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 section_heads(uint32 all_heads, int64 bytes_per_head) {
  // Uses 32 bits, because each block divides before its first load, and a 64-bit division takes hundreds of clocks.
  const int64 known = bytes_per_head < 1 ? 1 : bytes_per_head > kSectionBytes ? kSectionBytes : bytes_per_head;
  const uint32 fitting = static_cast<uint32>(kSectionBytes) / static_cast<uint32>(known);
  const uint32 most = fitting > kSectionHeads ? fitting : kSectionHeads;
  const uint32 sections = (all_heads + most - 1) / most;
  return (all_heads + sections - 1) / sections;
}

// Maps blocks to one section after another. Each section has `section` heads. A section starts with the first tile of
// all its heads, then has the second tile of all its heads, and so on.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile in_sections(uint32 block, uint32 tiles, uint32 all_heads,
                                                                uint32 num_heads, uint32 section) {
  const uint32 first_head = block / (section * tiles) * section;
  const uint32 rest = block % (section * tiles);
  const uint32 heads = all_heads - first_head < section ? all_heads - first_head : section;
  const uint32 head = first_head + rest % heads;
  return {head / num_heads, head % num_heads, rest / heads};
}

// Maps a block like in_sections(), but each section starts with the last tiles of its heads. These are the longest row
// tiles of a head under a causal mask.
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
