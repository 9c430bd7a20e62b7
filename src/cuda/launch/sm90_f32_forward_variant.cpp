// Which tile sm90_f32_forward takes for which facts.
#include "cuda/launch/sm90_f32_forward_variant.hpp"

#include <algorithm>

namespace attend::cuda {

Sm90F32Tile sm90_f32_forward_tile(const Facts& facts, bool low) {
  const bool is_narrow = std::max(facts.head_dim, facts.head_dim_v) <= 64;
  const bool has_blocks = facts.has(option::kBlockMask);  // whose tiles are of 64 keys
  const bool has_rules = facts.has_rules();
  // Scores, p in two pieces, a tile's p v and o take nearly all of a thread's registers. docs/hopper_forward.md has the
  // measurements.
  Sm90F32Tile tile = {.consumers = 2,
                      .block_n = 64,
                      .stages = 2,
                      .producer_registers = 24,
                      .consumer_registers = 240,
                      .takes_turns = 1,
                      .schedule = Schedule::kDynamic};
  if (is_narrow && !has_blocks) tile.block_n = 96;  // with 128 more of p v is cut off
  if (!is_narrow && !has_rules && !has_blocks && !low) tile.block_n = 80;
  if (low || (has_blocks && !is_narrow)) {
    tile.consumers = 1;
    tile.producer_registers = 40;
    tile.consumer_registers = 256;
    tile.takes_turns = 0;
  }
  return tile;
}

}  // namespace attend::cuda
