// The compile-time parameters of the kernels of sm90_fp8_forward, and the choice of the tile.
#pragma once

#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "kernels/sm90/sm90_fp8_shape.cuh"

namespace attend::cuda {

/// Facts::element is the type of o.
struct Sm90Fp8ForwardVariant : Facts {
  Sm90Fp8Tile tile = {};
  std::int32_t key_blocks = 0;  ///< whether the descales of k or v differ between blocks of keys

  [[nodiscard]] int smem_bytes() const { return tile.smem_bytes(head_dim_v); }
};

/// The main kernel shares code with sm90_forward. Therefore its Config also contains constants for features that
/// sm90_fp8_forward does not support.
inline constexpr Field<Sm90Fp8ForwardVariant> kSm90Fp8ForwardFields[] = {
    {nullptr, "kThreads", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::threads>},
    {"consumers", "kConsumers", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::consumers>},
    {nullptr, "kBlockM", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::block_m>},
    {"block_n", "kBlockN", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::block_n>},
    {"stages", "kStages", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::stages>},
    {"producer_registers", "kProducerRegisters",
     number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::producer_registers>},
    {"consumer_registers", "kConsumerRegisters",
     number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::consumer_registers>},
    {"ping_pong", "kPingPong", flag<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::takes_turns>},
    {"speculate", "kSpeculate", flag<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::speculates>},
    {"dynamic", "kSchedule", number<&Sm90Fp8ForwardVariant::tile, &Sm90Fp8Tile::schedule>},
    {nullptr, "kHasKeyBlocks", flag<&Sm90Fp8ForwardVariant::key_blocks>},
    {nullptr, "kSmemBytes", number<&Sm90Fp8ForwardVariant::smem_bytes>},
};
static_assert(covers<Sm90Fp8ForwardVariant>(kSm90Fp8ForwardFields));

/// Returns the tile of the main kernel.
/// @param key_blocks  whether the descales of k or v differ between blocks of keys
/// @param low  whether to use one consumer warpgroup, for few query rows
[[nodiscard]] Sm90Fp8Tile sm90_fp8_forward_tile(const Facts& facts, bool key_blocks, bool low);

}  // namespace attend::cuda
