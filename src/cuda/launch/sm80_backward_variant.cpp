// Chooses the tiles of sm80_backward.
#include "cuda/launch/sm80_backward_variant.hpp"

#include <iterator>

namespace attend::cuda {
namespace {

/// The members of a tile that are chosen. Each default is the most frequent value.
struct Shape {
  int warps = 8;
  int row_groups = 1;
  int streamed = 32;
  int step = 32;
  int min_blocks = 1;
  bool adds_dq = false;
  int roles = kSm80General;
  int parts = 1;
};

Sm80BackwardTile tile_of(const Shape& shape) {
  return {.warps = shape.warps,
          .row_groups = shape.row_groups,
          .streamed = shape.streamed,
          .step = shape.step,
          .min_blocks = shape.min_blocks,
          .adds_dq = shape.adds_dq,
          .roles = shape.roles,
          .parts = shape.parts};
}

/// Returns the first of `tiles` that fits in the shared memory of a block. The last tile always fits.
template <std::size_t kCount>
Sm80BackwardTile first_that_fits(const Facts& facts, Sm80Gradient gradient, int max_smem,
                                 const Sm80BackwardTile (&tiles)[kCount]) {
  return *std::find_if(std::begin(tiles), std::end(tiles) - 1, [&](const Sm80BackwardTile& tile) {
    return sm80_backward_smem_bytes(gradient, tile, facts.head_dim, facts.head_dim_v, facts.has_lse_rounding()) <=
           max_smem;
  });
}

/// Returns the tile for the kernel of sm80_backward_unmodified.cuh. If no tile fits in shared memory, returns a tile
/// with 0 warps.
Sm80BackwardTile unmodified_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  constexpr Sm80Gradient kBoth = Sm80Gradient::kKeysValues;
  if (widest <= 64) {
    const Shape narrow = {
        .warps = 4, .row_groups = 2, .streamed = 64, .min_blocks = 2, .adds_dq = true, .roles = kSm80KeysAndValues};
    return first_that_fits(facts, kBoth, max_smem, {tile_of(narrow), {}});
  }
  const Shape tall = {.row_groups = 2,
                      .streamed = 64,
                      .step = 64,
                      .adds_dq = true,
                      .roles = kSm80KeysOrValues,
                      .parts = widest <= 128 ? 1 : 2};
  Shape low = tall;
  low.streamed = low.step = 32;
  return first_that_fits(facts, kBoth, max_smem, {tile_of(tall), tile_of(low), {}});
}

// sm_86, sm_89 and sm_120 have less shared memory. On sm_120 the compiler also needs more registers.
constexpr int kMidSmem = 128 << 10;

/// Returns the tile for dk and dv. It computes as many scores at a time as the registers allow. If possible, a warp
/// processes two groups of 16 rows.
/// @param adds_dq  whether to compute dq in the same pass, if shared memory has room for ds
Sm80BackwardTile keys_tile(const Facts& facts, int max_smem, bool adds_dq) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  // A transform and dropout each store a value per score.
  const int step = facts.score().transforms && facts.score().drops ? 16 : 32;
  // Each of the two masks needs registers.
  const bool has_two_masks = facts.has(option::kBlockMask) && facts.mask != MaskKind::kFull;
  if (widest <= 64 && facts.has_rules()) return tile_of({.streamed = 64, .adds_dq = adds_dq});
  if (widest <= 64) {
    return tile_of({.warps = 4,
                    .row_groups = 2,
                    .streamed = 64,
                    .step = max_smem < kMidSmem || has_two_masks ? 16 : 32,
                    .min_blocks = 2,
                    .adds_dq = adds_dq});
  }
  if (widest <= 128) {
    const Shape tall = {.streamed = 64, .step = facts.has_rules() ? step : 64, .adds_dq = adds_dq};
    return first_that_fits(facts, Sm80Gradient::kKeysValues, max_smem,
                           {tile_of(tall), tile_of({.step = step}), tile_of({.warps = 4})});
  }
  return first_that_fits(facts, Sm80Gradient::kKeys, max_smem,
                         {tile_of({}), tile_of({.warps = 4}), tile_of({.warps = 4, .streamed = 16, .step = 16})});
}

Sm80BackwardTile queries_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (widest > 128) return keys_tile(facts, max_smem, false);
  if (widest <= 64) return tile_of({.warps = 4, .row_groups = 2, .streamed = 64, .min_blocks = 2});
  const int step = facts.has_rules() || max_smem < kMidSmem ? 16 : 32;
  return tile_of({.warps = 4, .row_groups = 2, .step = step, .min_blocks = 2});
}

Sm80BackwardTile bias_tile(const Facts& facts) {
  const bool is_wide = std::max(facts.head_dim, facts.head_dim_v) > 128;
  return tile_of({.warps = is_wide ? 4 : 8});
}

}  // namespace

void Sm80BackwardVariant::set_dbias(ElementType type, bool over_rows) {
  has_dbias = 1;
  dbias = type;
  dbias_over_rows = over_rows ? 1 : 0;
  if (!over_rows) bias = bias_tile(*this);
}

Sm80BackwardVariant sm80_backward_variant(const Facts& facts, int copy_bytes, int max_smem, bool is_deterministic,
                                          bool has_dbias) {
  Sm80BackwardVariant v = {facts};
  v.copy_bytes = copy_bytes;
  const bool is_masked = facts.has_rules() || facts.has(option::kBlockMask);
  const bool is_unmodified = !is_masked && !has_dbias && copy_bytes == 16 && !is_deterministic;
  if (is_unmodified) v.keys = unmodified_tile(facts, max_smem);
  if (v.keys.warps == 0) v.keys = keys_tile(facts, max_smem, !is_deterministic);
  if (v.keys.adds_dq == 0) v.queries = queries_tile(facts, max_smem);
  return v;
}

}  // namespace attend::cuda
