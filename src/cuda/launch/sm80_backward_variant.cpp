// Which tiles sm80_backward takes for which facts.
#include "cuda/launch/sm80_backward_variant.hpp"

#include <iterator>

namespace attend::cuda {
namespace {

/// The first of `tiles` that fits into a block's shared memory; the last one always does.
template <std::size_t kCount>
Sm80BackwardTile first_that_fits(const Facts& facts, Sm80Gradient gradient, int max_smem,
                                 const Sm80BackwardTile (&tiles)[kCount]) {
  return *std::find_if(std::begin(tiles), std::end(tiles) - 1, [&](const Sm80BackwardTile& tile) {
    return sm80_backward_smem_bytes(gradient, tile, facts.head_dim, facts.head_dim_v, facts.has_lse_rounding()) <=
           max_smem;
  });
}

/// The tile of sm80_backward_unmodified.cuh, if one fits; otherwise one with no warps.
Sm80BackwardTile unmodified_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const auto make = [](int warps, int streamed, int step, int min_blocks, Sm80Roles roles, int parts) {
    return Sm80BackwardTile{warps, 2, streamed, step, min_blocks, 1, roles, parts};
  };
  if (widest <= 64)
    return first_that_fits(facts, Sm80Gradient::kKeysValues, max_smem, {make(4, 64, 32, 2, kSm80KeysAndValues, 1), {}});
  const int parts = widest <= 128 ? 1 : 2;
  return first_that_fits(
      facts, Sm80Gradient::kKeysValues, max_smem,
      {make(8, 64, 64, 1, kSm80KeysOrValues, parts), make(8, 32, 32, 1, kSm80KeysOrValues, parts), {}});
}

constexpr int kMidSmem = 128 << 10;  // sm_86, sm_89 and sm_120 have less; for the last ptxas wants more registers

/// As many scores at a time as registers allow beside the sums: two groups of 16 rows a warp, where they do.
/// @param adds_dq  in one pass with dq, where there is room for ds
Sm80BackwardTile keys_tile(const Facts& facts, int max_smem, bool adds_dq) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  const int step = facts.score().transforms && facts.score().drops ? 16 : 32;  // both keep some of a score
  const auto make = [](int warps, int row_groups, int streamed, int of_step, int min_blocks, bool adds = false) {
    return Sm80BackwardTile{warps, row_groups, streamed, of_step, min_blocks, adds ? 1 : 0, kSm80General, 1};
  };
  if (widest <= 64) {
    if (facts.has_rules()) return make(8, 1, 64, 32, 1, adds_dq);
    return make(4, 2, 64, max_smem < kMidSmem ? 16 : 32, 2, adds_dq);
  }
  if (widest <= 128) {
    return first_that_fits(
        facts, Sm80Gradient::kKeysValues, max_smem,
        {make(8, 1, 64, facts.has_rules() ? step : 64, 1, adds_dq), make(8, 1, 32, step, 1), make(4, 1, 32, 32, 1)});
  }
  return first_that_fits(facts, Sm80Gradient::kKeys, max_smem,
                         {make(8, 1, 32, 32, 1), make(4, 1, 32, 32, 1), make(4, 1, 16, 16, 1)});
}

Sm80BackwardTile queries_tile(const Facts& facts, int max_smem) {
  const int widest = std::max(facts.head_dim, facts.head_dim_v);
  if (widest > 128) return keys_tile(facts, max_smem, false);
  if (widest <= 64)
    return {.warps = 4,
            .row_groups = 2,
            .streamed = 64,
            .step = 32,
            .min_blocks = 2,
            .adds_dq = 0,
            .roles = kSm80General,
            .parts = 1};
  return {.warps = 4,
          .row_groups = 2,
          .streamed = 32,
          .step = facts.has_rules() || max_smem < kMidSmem ? 16 : 32,
          .min_blocks = 2,
          .adds_dq = 0,
          .roles = kSm80General,
          .parts = 1};
}

Sm80BackwardTile bias_tile(const Facts& facts) {
  const bool is_wide = std::max(facts.head_dim, facts.head_dim_v) > 128;
  return {.warps = is_wide ? 4 : 8,
          .row_groups = 1,
          .streamed = 32,
          .step = 32,
          .min_blocks = 1,
          .adds_dq = 0,
          .roles = kSm80General,
          .parts = 1};
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
  const bool is_unmodified = !facts.has_rules() && !has_dbias && copy_bytes == 16 && !is_deterministic;
  if (is_unmodified) v.keys = unmodified_tile(facts, max_smem);
  if (v.keys.warps == 0) v.keys = keys_tile(facts, max_smem, !is_deterministic);
  if (v.keys.adds_dq == 0) v.queries = queries_tile(facts, max_smem);
  return v;
}

}  // namespace attend::cuda
