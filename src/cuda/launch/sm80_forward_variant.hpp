// Compile-time facts of sm80_forward's kernel, and the choice of its tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_forward_shape.cuh"

namespace attend::cuda {

struct Sm80ForwardVariant : Facts {
  /// 16, 4 or 2: all addresses, strides and row lengths are multiples of this value.
  std::int32_t copy_bytes = 16;
  Sm80ForwardTile tile = {};

  [[nodiscard]] int smem_bytes() const { return sm80_forward_smem_bytes(tile, head_dim, head_dim_v); }
  [[nodiscard]] int widest() const { return std::max(head_dim, head_dim_v); }
};

inline constexpr Field<Sm80ForwardVariant> kSm80ForwardFields[] = {
    {nullptr, "kThreads", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::threads>},
    {"warps", "kWarps", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::warps>},
    {"row_groups", "kRowGroups", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::row_groups>},
    {nullptr, "kBlockM", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::block_m>},
    {"block_n", "kBlockN", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::block_n>},
    {"q_in_registers", "kQInRegisters", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::q_in_registers>},
    {"column_parts", "kColumnParts", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::column_parts>},
    {"min_blocks", nullptr, unread<&Sm80ForwardVariant::tile, &Sm80ForwardTile::min_blocks>},
    {"puts_aside", "kPutsAside", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::puts_aside>},
    {"speculates", "kSpeculates", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::speculates>},
    {"fuses", "kFuses", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::fuses>},
    {"parks", "kParks", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::parks>},
    {"trails", "kTrails", flag<&Sm80ForwardVariant::tile, &Sm80ForwardTile::trails>},
    {"splits", "kSplits", number<&Sm80ForwardVariant::tile, &Sm80ForwardTile::splits>},
    {nullptr, "kCopyBytes", number<&Sm80ForwardVariant::copy_bytes>},
    {nullptr, "kSmemBytes", number<&Sm80ForwardVariant::smem_bytes>},
};
static_assert(covers<Sm80ForwardVariant>(kSm80ForwardFields));

/// Returns a tall tile. A warp has two groups of 16 rows if registers suffice for their sums and scores. A
/// multiprocessor has two blocks, or one block of eight warps, so that the softmax of some warps overlaps the products
/// of others.
[[nodiscard]] Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem);

/// Returns a tile for short causal sequences, or nothing. The mask would hide half of a tall tile, and too few tall
/// tiles run at once. On an H200 (16384 rows of 2048 columns in total), tall tiles are slower at 512 keys but not at
/// 2048 keys. The crossover has not been measured.
[[nodiscard]] std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem);

/// Returns a tile for heads with few rows. Warps whose rows do not exist only load data.
[[nodiscard]] Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem);

/// Returns a tile with room in shared memory for spilled sums, for sums over very many keys.
[[nodiscard]] Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem);

[[nodiscard]] Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile);

}  // namespace attend::cuda
