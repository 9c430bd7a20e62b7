// Chooses the tile of sm90_f32_forward.
#include "cuda/launch/sm90_f32_forward_variant.hpp"

#include <algorithm>

namespace attend::cuda {

Sm90F32Tile sm90_f32_forward_tile(const Facts& facts, bool low) {
  const bool is_narrow = std::max(facts.head_dim, facts.head_dim_v) <= 64;
  const bool has_blocks = facts.has(option::kBlockMask);  // a tile of a block mask has 64 keys
  const bool has_rules = facts.has_rules();
  // The scores, the two pieces of p, the product p v of one key tile, and o together need nearly all registers of a
  // thread. Measurements: docs/hopper_forward.md.
  Sm90F32Tile tile = {.consumers = 2,
                      .block_n = 64,
                      .stages = 2,
                      .producer_registers = 24,
                      .consumer_registers = 240,
                      .takes_turns = 1,
                      .schedule = Schedule::kDynamic};
  // With 128 keys per tile, truncation in the tensor cores would reduce the accuracy of p v.
  if (is_narrow && !has_blocks) tile.block_n = 96;
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
