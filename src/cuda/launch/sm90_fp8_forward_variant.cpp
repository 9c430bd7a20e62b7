// Chooses the tile of sm90_fp8_forward.
#include "cuda/launch/sm90_fp8_forward_variant.hpp"

#include <algorithm>

namespace attend::cuda {

Sm90Fp8Tile sm90_fp8_forward_tile(const Facts& facts, bool key_blocks, bool low) {
  // The scores, p, the product p v of one key tile, and o together need nearly all registers of a thread.
  Sm90Fp8Tile tile = {.consumers = 2,
                      .block_n = kFp8BlockKeys,
                      .stages = 4,
                      .producer_registers = 24,
                      .consumer_registers = 240,
                      .takes_turns = 1,
                      .speculates = 0,
                      .schedule = Schedule::kDynamic};
  if (low) {
    tile.consumers = 1;
    tile.producer_registers = 40;
    tile.consumer_registers = 256;
    tile.takes_turns = 0;
  } else if (std::max(facts.head_dim, facts.head_dim_v) <= 64 && !key_blocks) {
    tile.consumers = 3;
    tile.block_n = 96;
    tile.producer_registers = 32;
    tile.consumer_registers = 160;
  }
  return tile;
}

}  // namespace attend::cuda
