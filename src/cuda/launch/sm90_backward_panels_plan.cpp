#include "cuda/launch/sm90_backward_panels_plan.hpp"

#include <algorithm>

namespace attend::cuda {

Sm90BackwardPanelsPlan Sm90BackwardPanelsPlan::of(const core::Problem& p, const Sm90BackwardPanelsVariant& v) {
  constexpr std::int64_t kElementBytes = sizeof(Bits16), kFloatBytes = sizeof(float), kKibi = 1024;
  Sm90BackwardPanelsPlan plan;
  plan.group = p.num_heads_k == 0 ? 1 : std::max<std::int64_t>(1, p.num_heads_q / p.num_heads_k);
  plan.units = p.num_heads_k * p.num_sequences;
  plan.matrix_rows = panels_padded(p.max_seqlen_q, kPanelsRows);
  plan.panel_keys = panels_padded(p.max_seqlen_k, kPanelsKeys);
  const std::int64_t most = std::int64_t{v.panel_kib} * kKibi;
  // Size of p and ds of one key.
  const std::int64_t key_bytes = 2 * kElementBytes * plan.group * plan.matrix_rows;
  const std::int64_t fitting = most / (key_bytes * plan.panel_keys);
  if (fitting > 0) {
    // All panels have about the same number of units.
    const std::int64_t panels = std::max<std::int64_t>(1, num_tiles(plan.units, fitting));
    plan.panel_units = std::max<std::int64_t>(1, num_tiles(plan.units, panels));
  } else {
    const std::int64_t tiles = plan.panel_keys / kPanelsKeys;
    const std::int64_t fitting_tiles = std::max<std::int64_t>(1, most / (key_bytes * kPanelsKeys));
    plan.panel_keys = num_tiles(tiles, num_tiles(tiles, fitting_tiles)) * kPanelsKeys;
  }
  const std::int64_t matrices = plan.panel_units * plan.group;
  const std::int64_t row_tiles = plan.matrix_rows / kPanelsRows;
  const std::int64_t columns = num_tiles(v.head_dim, v.columns()), columns_v = num_tiles(v.head_dim_v, v.columns());
  plan.stats_rows = p.varlen ? panels_packed_rows(p.q.shape[2], p.num_sequences) : plan.matrix_rows;
  plan.row_blocks = num_tiles(p.max_seqlen_q, kPanelsRows) * p.num_heads_q * p.num_sequences;
  plan.score_tiles = matrices * row_tiles * (plan.panel_keys / kPanelsScoreKeys);
  plan.product_tiles =
      plan.panel_units * (plan.panel_keys / kPanelsRows) * (columns + columns_v) + matrices * row_tiles * columns;
  plan.matrix_bytes = matrices * plan.matrix_rows * plan.panel_keys * kElementBytes;
  plan.stats_bytes = p.q.shape[0] * p.num_heads_q * plan.stats_rows * kFloatBytes;
  if (plan.panel_keys < p.max_seqlen_k) {
    plan.dq_bytes = matrices * plan.matrix_rows * columns * v.columns() * kFloatBytes;
  }
  return plan;
}

}  // namespace attend::cuda
