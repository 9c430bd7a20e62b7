// The plan of a backward pass of sm90_backward_panels: its compile-time parameters, how it is cut into panels, the
// grids and the scratch memory.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/launch/fields.hpp"
#include "kernels/sm90/sm90_backward_panels_layout.cuh"

namespace attend::cuda {

struct Sm90BackwardPanelsVariant : Facts {
  static constexpr std::int32_t kMostPanelKib = 256 << 10;

  /// Largest size of p and ds of a panel in KiB.
  std::int32_t panel_kib = kMostPanelKib;

  [[nodiscard]] std::int32_t columns() const { return panels_columns(head_dim, head_dim_v); }
};

inline constexpr Field<Sm90BackwardPanelsVariant> kSm90BackwardPanelsFields[] = {
    {nullptr, nullptr, unread<&Sm90BackwardPanelsVariant::panel_kib>},
    {nullptr, "kColumns", number<&Sm90BackwardPanelsVariant::columns>},
};
static_assert(covers<Sm90BackwardPanelsVariant>(kSm90BackwardPanelsFields));

/// Launch parameters that are computed from a problem. A unit is a key head of a sequence, with the query heads that
/// share it. A panel has all rows and some keys of one unit, or all rows and all keys of several units.
struct Sm90BackwardPanelsPlan {
  std::int64_t group = 1;          ///< query heads of a unit
  std::int64_t units = 0;          ///< units of the problem
  std::int64_t panel_units = 1;    ///< units of a panel
  std::int64_t panel_keys = 0;     ///< keys of a panel, a multiple of the tile
  std::int64_t matrix_rows = 0;    ///< rows of the scores of a query head, including padding
  std::int64_t stats_rows = 0;     ///< rows of the statistics of a query head, including padding
  std::int64_t row_blocks = 0;     ///< blocks of the kernel that computes the statistics
  std::int64_t score_tiles = 0;    ///< tiles of scores of a panel, including those without a visible key
  std::int64_t product_tiles = 0;  ///< tiles of gradients of a panel
  std::int64_t matrix_bytes = 0;   ///< size of p of a panel, which is also the size of ds
  std::int64_t stats_bytes = 0;    ///< size of one statistic of all rows
  std::int64_t dq_bytes = 0;       ///< size of the float32 sums of dq. 0 if each panel has all keys of its units

  [[nodiscard]] static Sm90BackwardPanelsPlan of(const core::Problem& p, const Sm90BackwardPanelsVariant& v);

  /// Returns the size of p and ds of a panel in bytes.
  [[nodiscard]] std::int64_t panel_bytes() const { return 2 * matrix_bytes; }
};

}  // namespace attend::cuda
