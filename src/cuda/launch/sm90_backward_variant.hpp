// Compile-time facts of sm90_backward's kernels.
#pragma once

#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "cuda/launch/sm90_mask_steps.hpp"
#include "kernels/sm90/sm90_backward_layout.cuh"

namespace attend::cuda {

/// Returns the mask lists that the kernels walk.
/// @param is_deterministic  additions to dq have a fixed order
[[nodiscard]] inline Sm90MaskLists sm90_backward_mask_lists(const Sm90BackwardTile& tile, bool is_deterministic) {
  return {.by_rows_rows = tile.is_wide ? kBackwardWideRows : 0,
          .by_rows_keys = tile.is_wide ? kBackwardWideKeys : 0,
          .by_keys_keys = tile.block_n,
          .has_order = is_deterministic,
          .is_persistent = tile.is_persistent};
}

struct Sm90BackwardVariant : Facts {
  std::int32_t is_deterministic = 0;
  /// dk and dv of a group's query heads are added up in memory.
  std::int32_t adds_up = 0;
  std::int32_t owns_heads = 0;    ///< one block has all key blocks of a head and rounds dq
  std::int32_t dbias_blocks = 0;  ///< sm90_backward_dbias_blocks()
  ElementType dbias = ElementType::kBF16;

  [[nodiscard]] Sm90BackwardTile tile() const {
    return sm90_backward_tile(head_dim, head_dim_v, score(), dbias_blocks, owns_heads != 0);
  }
  [[nodiscard]] Sm90MaskLists mask_lists() const { return sm90_backward_mask_lists(tile(), is_deterministic != 0); }
  /// Returns the number of steps that build mask lists. They precede all other steps.
  [[nodiscard]] std::size_t steps_before() const { return lists_from_mask != 0 ? mask_lists().num_steps() : 0; }
};

/// The table has no rows for the tile, because host and device compute the tile from these members. owns_heads must be
/// the last row with a name: see tunables().
inline constexpr Field<Sm90BackwardVariant> kSm90BackwardFields[] = {
    {"is_deterministic", "kIsDeterministic", flag<&Sm90BackwardVariant::is_deterministic>},
    {"adds_up", "kAddsUp", flag<&Sm90BackwardVariant::adds_up>},
    {"owns_heads", "kOwnsHeads", flag<&Sm90BackwardVariant::owns_heads>},
    {nullptr, "kDtermsBlocks", number<&Sm90BackwardVariant::dbias_blocks>},
    {nullptr, "kDbiasElement", number<&Sm90BackwardVariant::dbias>},
};
static_assert(covers<Sm90BackwardVariant>(kSm90BackwardFields));

}  // namespace attend::cuda
