// The order of a causal grid. Tiles of rows differ in length, the last of a head being the longest; blocks start in the
// order of their index, so long tiles go first, and short ones fill what is left at the end.
//
// Done over all heads at once, that would leave each head so few blocks at a time that its keys, read by all of them,
// came from memory again and again. So it is done in sections of heads: as many as have their keys in the L2 cache
// together, and otherwise few enough that blocks of the same head run side by side.
#pragma once

#include "portable.cuh"
#include "work.cuh"

namespace attend {

constexpr int64 kSectionBytes = 32 << 20;  // of k and v: less than the L2 cache of an H200, 50 MB, or A100, 40 MB
constexpr int64 kSectionHeads = 16;        // that share the GPU: 16 blocks a head on 132 multiprocessors with two each

// Heads of a section, all sections being alike as far as they can. bytes_per_head: of k and v.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr uint32 section_heads(uint32 all_heads, int64 bytes_per_head) {
  const int64 fitting = kSectionBytes / (bytes_per_head < 1 ? 1 : bytes_per_head);
  const int64 most = fitting > kSectionHeads ? fitting : kSectionHeads;
  const int64 sections = num_tiles(all_heads, most);
  return static_cast<uint32>(num_tiles(all_heads, sections));
}

// Work of a block: inside a section of heads the longest tiles first.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr HeadTile longest_first(uint32 block, uint32 tiles, uint32 batch,
                                                                  uint32 num_heads, int64 bytes_per_head) {
  const uint32 all_heads = batch * num_heads;
  const uint32 section = section_heads(all_heads, bytes_per_head);
  const uint32 first_head = block / (section * tiles) * section;
  const uint32 rest = block % (section * tiles);
  const uint32 heads = all_heads - first_head < section ? all_heads - first_head : section;
  const uint32 head = first_head + rest % heads;
  return {head / num_heads, head % num_heads, static_cast<int64>(tiles) - 1 - rest / heads};
}

}  // namespace attend
