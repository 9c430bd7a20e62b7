// The compile-time parameters of the kernels of sm90_f32_forward, and the choice of the tile.
#pragma once

#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "cuda/launch/simt_variant.hpp"
#include "kernels/sm90/sm90_f32_shape.cuh"

namespace attend::cuda {

struct Sm90F32ForwardVariant : Facts {
  Sm90F32Tile tile = {};
  /// Tile of the fallback kernel. It computes heads whose values cannot be represented by two float16 numbers each.
  SimtForwardTile wide = {};
  /// Options of the fallback kernel. Unlike the main kernel, it reads boolean masks directly.
  std::int32_t wide_options = 0;

  [[nodiscard]] int smem_bytes() const { return tile.smem_bytes(head_dim, head_dim_v); }
};

/// The main kernel shares code with sm90_forward. Therefore its Config also contains constants for features that
/// sm90_f32_forward does not support.
inline constexpr Field<Sm90F32Tile> kSm90F32ForwardFields[] = {
    {nullptr, "kThreads", number<&Sm90F32Tile::threads>},
    {"consumers", "kConsumers", number<&Sm90F32Tile::consumers>},
    {nullptr, "kBlockM", number<&Sm90F32Tile::block_m>},
    {"block_n", "kBlockN", number<&Sm90F32Tile::block_n>},
    {"stages", "kStages", number<&Sm90F32Tile::stages>},
    {"producer_registers", "kProducerRegisters", number<&Sm90F32Tile::producer_registers>},
    {"consumer_registers", "kConsumerRegisters", number<&Sm90F32Tile::consumer_registers>},
    {"ping_pong", "kPingPong", flag<&Sm90F32Tile::takes_turns>},
    {"dynamic", "kSchedule", number<&Sm90F32Tile::schedule>},
};
static_assert(covers<Sm90F32Tile>(kSm90F32ForwardFields));

/// Returns the tile of the main kernel.
/// @param low  whether to use one consumer warpgroup, for few query rows
[[nodiscard]] Sm90F32Tile sm90_f32_forward_tile(const Facts& facts, bool low);

}  // namespace attend::cuda
