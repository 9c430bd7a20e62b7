// What sm90_f32_forward's kernels are compiled for, and which tile they take for which facts.
#pragma once

#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "cuda/launch/simt_variant.hpp"
#include "kernels/sm90/sm90_f32_shape.cuh"

namespace attend::cuda {

struct Sm90F32ForwardVariant : Facts {
  Sm90F32Tile tile = {};
  SimtForwardTile wide = {};      ///< of the kernel for heads that two pieces are not enough for
  std::int32_t wide_options = 0;  ///< its facts' own: it reads boolean masks

  [[nodiscard]] int smem_bytes() const { return tile.smem_bytes(head_dim, head_dim_v); }
};

/// The Config of the main kernel has constants of what this family has not, since parts of it are sm90_forward's.
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

/// @param low  for few rows: one consumer
[[nodiscard]] Sm90F32Tile sm90_f32_forward_tile(const Facts& facts, bool low);

}  // namespace attend::cuda
