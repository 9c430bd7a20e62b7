// Chooses sm90_f32_forward's tile.
#include "cuda/launch/sm90_f32_forward_variant.hpp"

#include <algorithm>

namespace attend::cuda {

Sm90F32Tile sm90_f32_forward_tile(const Facts& facts, bool low) {
  const bool is_narrow = std::max(facts.head_dim, facts.head_dim_v) <= 64;
  const bool has_blocks = facts.has(option::kBlockMask);  // mask tiles have 64 keys
  const bool has_rules = facts.has_rules();
  // Scores, p in two pieces, p v of one tile, and o use nearly all registers of a thread. Measurements:
  // docs/hopper_forward.md.
  Sm90F32Tile tile = {.consumers = 2,
                      .block_n = 64,
                      .stages = 2,
                      .producer_registers = 24,
                      .consumer_registers = 240,
                      .takes_turns = 1,
                      .schedule = Schedule::kDynamic};
  if (is_narrow && !has_blocks) tile.block_n = 96;  // 128 keys would lose more of p v to truncation
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
