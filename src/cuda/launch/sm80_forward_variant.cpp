// Chooses the tile of sm80_forward.
#include "cuda/launch/sm80_forward_variant.hpp"

#include <iterator>

namespace attend::cuda {
namespace {

/// The members of a tile that are chosen. All other members are computed from the compile-time parameters.
struct Shape {
  int warps = 4;
  int row_groups = 1;
  int block_n = 32;
  bool q_in_registers = false;
  int min_blocks = 1;
  bool puts_aside = false;
};

Sm80ForwardTile tile_of(const Facts& facts, const Shape& shape) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool speculates = !facts.has_rules() && !shape.puts_aside;
  return {.warps = shape.warps,
          .row_groups = shape.row_groups,
          .block_n = shape.block_n,
          .q_in_registers = shape.q_in_registers,
          .column_parts = ceil_div(facts.head_dim_v, kSm80MostColumns),
          .min_blocks = shape.min_blocks,
          .puts_aside = shape.puts_aside,
          .speculates = speculates,
          .fuses = speculates && widest <= 64,
          .parks = speculates && widest > 64 && shape.row_groups == 2,
          .trails = 0,
          .splits = 1};
}

/// Returns the tile of the first of `shapes` that fits in the shared memory of a block. The last shape always fits.
template <std::size_t kCount>
Sm80ForwardTile first_that_fits(const Facts& facts, int max_smem, const Shape (&shapes)[kCount]) {
  const auto* fitting = std::find_if(std::begin(shapes), std::end(shapes) - 1, [&](const Shape& shape) {
    return sm80_forward_smem_bytes(tile_of(facts, shape), facts.head_dim, facts.head_dim_v) <= max_smem;
  });
  return tile_of(facts, *fitting);
}

/// Two of these blocks are resident on a multiprocessor. Each has 64 query rows of 256 columns.
constexpr Shape kTwoLowBlocks = {.block_n = 32, .q_in_registers = true, .min_blocks = 2};

/// Returns `tile`, changed so that the product p v of one key tile overlaps the exponentials of the next key tile.
Sm80ForwardTile trailing(Sm80ForwardTile tile) {
  tile.trails = 1;
  tile.fuses = 0;
  tile.parks = 0;
  return tile;
}

/// Returns a tile in which two warps share 32 query rows. Of all tiles, it waits least for shared memory.
Sm80ForwardTile split_tile(const Facts& facts) {
  Sm80ForwardTile tile = trailing(tile_of(facts, {.warps = 8, .row_groups = 2, .block_n = 64}));
  tile.splits = 2;
  return tile;
}

}  // namespace

Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem) {
  constexpr int kTwoOf32Keys = 138 << 10;  // two resident blocks of 128 query rows, 128 columns and 32 keys
  constexpr int kTwoOf64Keys = 203 << 10;  // two resident blocks of 128 query rows, 128 columns and 64 keys
  constexpr int kTwoOf64Rows = 197 << 10;  // two resident blocks of 64 query rows, 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  // Score modifications need registers, so tiles with score modifications have half as many keys.
  const int keys = facts.has_rules() ? 32 : 64;
  // Without a block mask, a block processes key tiles that are adjacent in memory.
  const bool is_plain = !facts.has_rules() && !facts.has(option::kBlockMask);
  const Shape two_blocks = {.row_groups = 2, .block_n = keys, .min_blocks = 2};
  // With less shared memory, as on sm_120, this tile would spill registers. It has not been measured there.
  if (widest > 32 && widest <= 64 && is_plain && max_smem >= kTwoOf32Keys) {
    return trailing(tile_of(facts, {.row_groups = 2, .block_n = 64, .q_in_registers = true, .min_blocks = 2}));
  }
  if (widest <= 64) return tile_of(facts, two_blocks);
  if (widest <= 128 && max_smem >= kTwoOf64Keys) return tile_of(facts, two_blocks);
  if (widest <= 128 && max_smem >= kTwoOf32Keys) {
    const Sm80ForwardTile tile = tile_of(facts, {.row_groups = 2, .block_n = 32, .min_blocks = 2});
    return is_plain ? trailing(tile) : tile;
  }
  if (widest <= 128) return tile_of(facts, {.warps = 8, .block_n = keys, .q_in_registers = true});
  // Two blocks do not wait for each other at barriers, but the warps of one block do. Holding q in registers saves one
  // ninth of all ldmatrix instructions.
  const bool is_wide = is_plain && widest > 192 && widest <= kSm80MostColumns;
  const bool splits = is_wide && sm80_columns_v(facts.head_dim_v, 1) % (2 * kPanelColumns) == 0;
  if (splits && sm80_forward_smem_bytes(split_tile(facts), facts.head_dim, facts.head_dim_v) <= max_smem) {
    return split_tile(facts);
  }
  if (is_wide && max_smem >= kTwoOf64Rows) return tile_of(facts, kTwoLowBlocks);
  return first_that_fits(facts, max_smem,
                         {{.warps = 8, .block_n = keys},
                          {.warps = 8, .block_n = 32},
                          {.block_n = 32},
                          {.block_n = 16},
                          {.warps = 2, .block_n = 16}});
}

std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem) {
  constexpr int kFourOf64Rows = 170 << 10;  // four resident blocks of 64 query rows, 64 columns and 64 keys
  constexpr int kTwoOf64Rows = 197 << 10;   // two resident blocks of 64 query rows, 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (facts.mask != MaskKind::kCausal || facts.has_rules()) return std::nullopt;
  if (widest > 32 && widest <= 64 && max_smem >= kFourOf64Rows) {
    Sm80ForwardTile tile = tile_of(facts, {.block_n = 64, .q_in_registers = true, .min_blocks = 4});
    tile.fuses = 0;  // with four resident blocks, too few registers remain to fuse
    return tile;
  }
  if (widest > 192 && widest <= kSm80MostColumns && max_smem >= kTwoOf64Rows) return tile_of(facts, kTwoLowBlocks);
  return std::nullopt;
}

Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem) {
  const int keys = facts.has_rules() ? 32 : 64;
  const bool q_in_registers = std::max(facts.head_dim, facts.head_dim_v) <= 128;
  return first_that_fits(facts, max_smem,
                         {{.block_n = keys, .q_in_registers = q_in_registers},
                          {.block_n = 32, .q_in_registers = q_in_registers},
                          {.block_n = 16},
                          {.warps = 2, .block_n = 16}});
}

Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem) {
  const int keys = facts.has_rules() ? 32 : 64;
  return first_that_fits(facts, max_smem,
                         {{.warps = 8, .block_n = keys, .puts_aside = true},
                          {.block_n = keys, .puts_aside = true},
                          {.block_n = 32, .puts_aside = true},
                          {.warps = 2, .block_n = 16, .puts_aside = true}});
}

Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile) {
  Sm80ForwardVariant v = {facts};
  v.copy_bytes = copy_bytes;
  v.tile = tile;
  return v;
}

}  // namespace attend::cuda
