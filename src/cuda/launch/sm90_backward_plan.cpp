#include "cuda/launch/sm90_backward_plan.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/attention/work.cuh"
#include "kernels/sm90/sm90_backward_schedule.cuh"

namespace attend::cuda {

using core::Problem;

int sm90_backward_dbias_blocks(const Problem& p) {
  if (!p.dbias) return 0;
  const std::int64_t sharing = p.dbias->shape[0] == p.num_sequences ? 1 : p.num_sequences;
  return static_cast<int>(std::min<std::int64_t>(sharing, kBackwardMostDtermsBlocks));
}

Facts sm90_backward_facts(const Problem& p, bool folds_scale) {
  Facts facts = facts_of(p, folds_scale);
  facts.see_mask_as_blocks();
  return facts;
}

Sm90BackwardTile sm90_backward_tile_of(const Problem& p) {
  return sm90_backward_tile(static_cast<int>(p.head_dim), static_cast<int>(p.head_dim_v),
                            sm90_backward_facts(p, true).score(), sm90_backward_dbias_blocks(p));
}

namespace {

/// Returns whether one block can process all key blocks of a head. Each query head must have a separate key head.
bool can_own_heads(const Problem& p) {
  if (sm90_backward_tile_of(p).is_wide || p.varlen || p.block_mask != nullptr || p.mask || p.adds_to_outputs() ||
      p.placement() != nullptr || p.num_heads_q != p.num_heads_k || p.max_seqlen_q == 0 || p.max_seqlen_k == 0) {
    return false;
  }
  if (p.alibi_slopes && p.dropout_p > 0) return false;  // the registers do not suffice for both options
  // Every row tile must see a key; otherwise no block writes its dq. Only the first row tile can have no visible key.
  const std::int64_t right = p.own_window().right;
  const std::int64_t last_row = std::min<std::int64_t>(kBackwardRows, p.max_seqlen_q) - 1;
  return right < 0 || last_row + p.max_seqlen_k - p.max_seqlen_q + right >= 0;
}

}  // namespace

bool sm90_backward_owns_heads(const Problem& p, const DeviceInfo& device) {
  if (!can_own_heads(p)) return false;
  constexpr double kLeastBusy = 0.9, kMostOfL2 = 0.8;
  const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
  const std::int64_t busy = std::int64_t{device.num_multiprocessors} * num_tiles(heads, device.num_multiprocessors);
  if (static_cast<double>(heads) < kLeastBusy * static_cast<double>(busy)) return false;
  // Every key block reads q, dout and the sums of dq again. With a causal mask, a key block reads half of this data on
  // average.
  const Sm90BackwardTile tile = sm90_backward_tile(static_cast<int>(p.head_dim), static_cast<int>(p.head_dim_v), {}, 0);
  const std::int64_t row_bytes = tile.columns() * kBackwardElementBytes + tile.depth * kBackwardFloatBytes;
  const std::int64_t live = p.max_seqlen_q * row_bytes * std::min<std::int64_t>(heads, device.num_multiprocessors);
  const bool is_half = p.own_window().right == 0;
  return static_cast<double>(live) / (is_half ? 2 : 1) <= kMostOfL2 * static_cast<double>(device.l2_bytes);
}

bool sm90_backward_prefers_persistent(const Problem& p, const DeviceInfo& device) {
  if (std::max(p.head_dim, p.head_dim_v) > kBackwardPanelColumns || sm90_backward_tile_of(p).is_wide) return false;
  // The registers do not suffice for ALiBi with dropout. The other cases have not been measured.
  if ((p.alibi_slopes && p.dropout_p > 0) || p.varlen || p.deterministic || p.mask || p.block_mask != nullptr ||
      p.adds_to_outputs() || p.placement() != nullptr) {
    return false;
  }
  constexpr Sm90BackwardTile kNarrow = sm90_backward_narrow_tile(), kPersistent = sm90_backward_persistent_tile(64, 64);
  // Time per key of a persistent block divided by that of a narrow one. Measured on an H200: 1.01 to 1.16.
  constexpr double kTimePerKey = 1.15;
  const auto multiprocessors = static_cast<double>(device.num_multiprocessors);
  const auto [left, right] = p.own_window();
  const bool is_full = left < 0 && right < 0, is_causal = left < 0 && right == 0;
  // Returns the longest time of a multiprocessor. The unit is the time in which a narrow block processes one key.
  const auto time = [&](const Sm90BackwardTile& tile) {
    const auto blocks = static_cast<double>(sm90_backward_items(tile, p.max_seqlen_k, p.num_heads_k, p.num_sequences));
    const double share = blocks / multiprocessors;
    double waves = std::ceil(share);
    if (is_full && tile.is_persistent) waves = std::max(1.0, share);  // the last items are cut
    if (is_causal) waves = std::max(1.0, share / 2);                  // the longest item has twice the mean length
    return waves * tile.block_n * (tile.is_persistent ? kTimePerKey : 1);
  };
  return time(kPersistent) < time(kNarrow);
}

Sm90BackwardPlan Sm90BackwardPlan::of(const Problem& p, const Sm90BackwardVariant& v, std::int64_t multiprocessors) {
  Sm90BackwardPlan plan = {};
  plan.tile = v.tile();
  plan.rows =
      p.varlen ? sm90_backward_packed_rows(p.q.shape[2], p.num_sequences) : sm90_backward_padded_rows(p.max_seqlen_q);
  plan.row_blocks = sm90_backward_row_blocks(p.max_seqlen_q, p.num_heads_q, p.num_sequences);
  const std::int64_t items =
      sm90_backward_items(plan.tile, p.max_seqlen_k, v.adds_up != 0 ? p.num_heads_q : p.num_heads_k, p.num_sequences);
  const std::int64_t key_blocks = num_tiles(p.max_seqlen_k, plan.tile.block_n);
  const bool are_alike = v.mask == MaskKind::kFull && !p.varlen && p.block_mask == nullptr && !p.mask;
  const std::int64_t heads = p.q.shape[0] * p.num_heads_q;
  plan.blocks = v.owns_heads != 0 ? std::min(heads, multiprocessors)
                                  : sm90_backward_blocks(plan.tile, items, key_blocks, multiprocessors,
                                                         v.is_deterministic != 0 && are_alike);
  if (v.adds_up != 0) {
    plan.key_tiles = key_blocks * plan.tile.compute_warpgroups() * p.num_heads_k * p.num_sequences;
    plan.key_sums = sm90_backward_key_sums(plan.tile, p.num_heads_k * p.num_sequences, key_blocks);
  }
  plan.last_blocks = plan.tile.is_wide ? sm90_backward_wide_row_blocks(p.max_seqlen_q, p.num_heads_q, p.num_sequences)
                                       : plan.row_blocks;
  plan.workspace = Sm90BackwardWorkspace::make(plan.tile, heads, plan.rows, plan.tile.is_persistent ? plan.blocks : 0,
                                               v.owns_heads != 0 ? plan.blocks : heads, v.is_deterministic != 0,
                                               v.has(option::kBias) || v.custom_may_be_huge != 0);
  return plan;
}

}  // namespace attend::cuda
