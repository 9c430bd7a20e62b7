// Which tile sm80_forward takes for which facts.
#include "cuda/launch/sm80_forward_variant.hpp"

#include <iterator>

namespace attend::cuda {
namespace {

/// The first of `tiles` that fits into a block's shared memory; the last one always does.
template <std::size_t kCount>
Sm80ForwardTile first_that_fits(const Facts& facts, int max_smem, const Sm80ForwardTile (&tiles)[kCount]) {
  const auto* fitting = std::find_if(std::begin(tiles), std::end(tiles) - 1, [&](const Sm80ForwardTile& tile) {
    return sm80_forward_smem_bytes(tile, facts.head_dim, facts.head_dim_v) <= max_smem;
  });
  return *fitting;
}

Sm80ForwardTile tile_of(const Facts& facts, int warps, int row_groups, int block_n, bool q_in_registers, int min_blocks,
                        bool puts_aside = false) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const bool speculates = !facts.has_rules() && !puts_aside;
  return {.warps = warps,
          .row_groups = row_groups,
          .block_n = block_n,
          .q_in_registers = q_in_registers,
          .column_parts = ceil_div(facts.head_dim_v, kSm80MostColumns),
          .min_blocks = min_blocks,
          .puts_aside = puts_aside,
          .speculates = speculates,
          .fuses = speculates && widest <= 64,
          .parks = speculates && widest > 64 && row_groups == 2,
          .trails = 0,
          .splits = 1};
}

/// p v of a tile beside the exponents of the next one.
Sm80ForwardTile trailing(Sm80ForwardTile tile) {
  tile.trails = 1;
  tile.fuses = 0;
  tile.parks = 0;
  return tile;
}

/// Two warps for the same 32 rows: the products wait for shared memory least.
Sm80ForwardTile split_tile(const Facts& facts) {
  Sm80ForwardTile tile = trailing(tile_of(facts, 8, 2, 64, false, 1));
  tile.splits = 2;
  return tile;
}

}  // namespace

Sm80ForwardTile sm80_tall_tile(const Facts& facts, int max_smem) {
  constexpr int kTwoOf32Keys = 138 << 10;  // two blocks of 128 rows of 128 columns and 32 keys, on a multiprocessor
  constexpr int kTwoOf64Keys = 203 << 10;  // likewise with 64 keys
  constexpr int kTwoOf64Rows = 197 << 10;  // two blocks of 64 rows of 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const int keys = facts.has_rules() ? 32 : 64;  // rules want the registers of the other scores
  const bool is_plain = !facts.has_rules();
  // With less shared memory, as on sm_120, it would spill; and there nobody has timed it.
  if (widest > 32 && widest <= 64 && is_plain && max_smem >= kTwoOf32Keys) {
    return trailing(tile_of(facts, 4, 2, 64, true, 2));
  }
  if (widest <= 64) return tile_of(facts, 4, 2, keys, false, 2);
  if (widest <= 128 && max_smem >= kTwoOf64Keys) return tile_of(facts, 4, 2, keys, false, 2);
  if (widest <= 128 && is_plain && max_smem >= kTwoOf32Keys) return trailing(tile_of(facts, 4, 2, 32, false, 2));
  if (widest <= 128 && max_smem >= kTwoOf32Keys) return tile_of(facts, 4, 2, 32, false, 2);
  if (widest <= 128) return tile_of(facts, 8, 1, keys, true, 1);
  // Two blocks do not wait for each other as the warps of one do, and q in registers spares a ninth of all ldmatrix.
  const bool is_wide = is_plain && widest > 192 && widest <= kSm80MostColumns;
  const bool splits = is_wide && sm80_columns_v(facts.head_dim_v, 1) % (2 * kPanelColumns) == 0;
  if (splits && sm80_forward_smem_bytes(split_tile(facts), facts.head_dim, facts.head_dim_v) <= max_smem) {
    return split_tile(facts);
  }
  if (is_wide && max_smem >= kTwoOf64Rows) return tile_of(facts, 4, 1, 32, true, 2);
  return first_that_fits(
      facts, max_smem,
      {tile_of(facts, 8, 1, keys, false, 1), tile_of(facts, 8, 1, 32, false, 1), tile_of(facts, 4, 1, 32, false, 1),
       tile_of(facts, 4, 1, 16, false, 1), tile_of(facts, 2, 1, 16, false, 1)});
}

std::optional<Sm80ForwardTile> sm80_short_tile(const Facts& facts, int max_smem) {
  constexpr int kFourOf64Rows = 170 << 10;  // four blocks of 64 rows of 64 columns and 64 keys, on a multiprocessor
  constexpr int kTwoOf64Rows = 197 << 10;   // two blocks of 64 rows of 256 columns and 32 keys
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (facts.mask != MaskKind::kCausal || facts.has_rules()) return std::nullopt;
  if (widest > 32 && widest <= 64 && max_smem >= kFourOf64Rows) {
    Sm80ForwardTile tile = tile_of(facts, 4, 1, 64, true, 4);
    tile.fuses = 0;  // four blocks leave no registers for it
    return tile;
  }
  if (widest > 192 && widest <= kSm80MostColumns && max_smem >= kTwoOf64Rows) return tile_of(facts, 4, 1, 32, true, 2);
  return std::nullopt;
}

Sm80ForwardTile sm80_low_tile(const Facts& facts, int max_smem) {
  const int keys = facts.has_rules() ? 32 : 64;
  const bool q_in_registers = std::max(facts.head_dim, facts.head_dim_v) <= 128;
  return first_that_fits(facts, max_smem,
                         {tile_of(facts, 4, 1, keys, q_in_registers, 1), tile_of(facts, 4, 1, 32, q_in_registers, 1),
                          tile_of(facts, 4, 1, 16, false, 1), tile_of(facts, 2, 1, 16, false, 1)});
}

Sm80ForwardTile sm80_long_tile(const Facts& facts, int max_smem) {
  const int keys = facts.has_rules() ? 32 : 64;
  return first_that_fits(facts, max_smem,
                         {tile_of(facts, 8, 1, keys, false, 1, true), tile_of(facts, 4, 1, keys, false, 1, true),
                          tile_of(facts, 4, 1, 32, false, 1, true), tile_of(facts, 2, 1, 16, false, 1, true)});
}

Sm80ForwardVariant sm80_forward_variant(const Facts& facts, int copy_bytes, const Sm80ForwardTile& tile) {
  Sm80ForwardVariant v = {facts};
  v.copy_bytes = copy_bytes;
  v.tile = tile;
  return v;
}

}  // namespace attend::cuda
