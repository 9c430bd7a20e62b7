// The compile-time parameters of the kernel of sm80_forward, and the choice of its tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/launch/fields.hpp"
#include "kernels/sm80/sm80_forward_shape.cuh"

namespace attend::cuda {

struct Sm80ForwardVariant : Facts {
  /// 16, 4 or 2. All addresses, strides and row lengths are multiples of this number of bytes.
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

/// Returns the tile with the most query rows. A warp processes two groups of 16 rows if its registers have room for
/// their accumulators and scores. A multiprocessor holds two blocks, or one block of eight warps. The softmax of some
/// warps can then overlap the matrix products of other warps.
[[nodiscard]] Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem);

/// Returns a tile for short causal sequences, or nothing if a tall tile should be used. With short sequences, the
/// causal mask hides half of a tall tile, and there are too few tall tiles to fill the GPU. Measured on an H200 with
/// 16384 rows of 2048 columns in total: tall tiles are slower at 512 keys, but not at 2048 keys. The crossover has not
/// been measured.
[[nodiscard]] std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem);

/// Returns a tile for heads with few query rows. Warps without valid rows only load data.
[[nodiscard]] Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem);

/// Returns a tile for very many keys. Its shared memory has room to spill partial sums of o.
[[nodiscard]] Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem);

[[nodiscard]] Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile);

}  // namespace attend::cuda
