// What sm80_forward's kernel is compiled for, and which tile it takes for which facts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_forward_shape.cuh"

namespace attend::cuda {

struct Sm80ForwardVariant : Facts {
  std::int32_t copy_bytes = 16;  ///< all addresses, strides and row lengths are multiples of it: 16, 4 or 2
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

/// Tall tiles: two groups of 16 rows a warp as long as their sums leave registers for the scores, and two blocks on a
/// multiprocessor, or one of eight warps, so that one's softmax runs under another's products.
[[nodiscard]] Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem);

/// For short causal sequences: of a tall tile masks would hide half, and few of them run at once. Tall ones lose at 512
/// keys on an H200 (16384 rows of 2048 columns in all), not at 2048; where they begin to win has not been looked for.
[[nodiscard]] std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem);

/// For heads with few rows: warps whose rows do not exist only load.
[[nodiscard]] Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem);

/// For sums over so many keys that they are put aside: a place for them in shared memory.
[[nodiscard]] Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem);

[[nodiscard]] Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile);

}  // namespace attend::cuda
