// The compile-time parameters of the kernels of sm90_backward.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch/fields.hpp"
#include "cuda/launch/sm90_mask_steps.hpp"
#include "kernels/sm90/sm90_backward_layout.cuh"

namespace attend::cuda {

/// Returns which mask lists the kernels read.
/// @param is_deterministic  whether the additions to dq have a fixed order
[[nodiscard]] inline Sm90MaskLists sm90_backward_mask_lists(const Sm90BackwardTile& tile, bool is_deterministic) {
  return {.by_rows_rows = tile.is_wide ? kBackwardWideRows : 0,
          .by_rows_keys = tile.is_wide ? kBackwardWideKeys : 0,
          .by_keys_keys = tile.block_n,
          .has_order = is_deterministic,
          .is_persistent = tile.is_persistent};
}

struct Sm90BackwardVariant : Facts {
  std::int32_t is_deterministic = 0;
  /// Whether the query heads of a group add their dk and dv in memory.
  std::int32_t adds_up = 0;
  std::int32_t is_persistent = 0;  ///< whether blocks of up to 64 columns process several key blocks, of 128 keys each
  std::int32_t owns_heads = 0;     ///< whether one block processes all key blocks of a head and writes the rounded dq
  std::int32_t dbias_blocks = 0;   ///< result of sm90_backward_dbias_blocks()
  ElementType dbias = ElementType::kBF16;

  [[nodiscard]] Sm90BackwardTile tile() const {
    return sm90_backward_tile(head_dim, head_dim_v, score(), dbias_blocks, (owns_heads | is_persistent) != 0);
  }
  /// Returns whether both head dimensions are at most 64, where is_persistent has a choice.
  [[nodiscard]] bool is_narrow() const { return std::max(head_dim, head_dim_v) <= 64; }
  [[nodiscard]] Sm90MaskLists mask_lists() const { return sm90_backward_mask_lists(tile(), is_deterministic != 0); }
  /// Returns the number of kernels that build mask lists. They run before all other kernels.
  [[nodiscard]] std::size_t steps_before() const { return lists_from_mask != 0 ? mask_lists().num_steps() : 0; }
};

/// The table has no rows for the tile, because both host and device compute the tile from the members below.
/// is_persistent and owns_heads must be the last rows with a name, because tunables() depends on this order.
inline constexpr Field<Sm90BackwardVariant> kSm90BackwardFields[] = {
    {"is_deterministic", "kIsDeterministic", flag<&Sm90BackwardVariant::is_deterministic>},
    {"adds_up", "kAddsUp", flag<&Sm90BackwardVariant::adds_up>},
    {"is_persistent", "kIsPersistent", flag<&Sm90BackwardVariant::is_persistent>},
    {"owns_heads", "kOwnsHeads", flag<&Sm90BackwardVariant::owns_heads>},
    {nullptr, "kDtermsBlocks", number<&Sm90BackwardVariant::dbias_blocks>},
    {nullptr, "kDbiasElement", number<&Sm90BackwardVariant::dbias>},
};
static_assert(covers<Sm90BackwardVariant>(kSm90BackwardFields));

}  // namespace attend::cuda
