#include "core/block_tiles.hpp"

#include "core/problem.hpp"
#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// If the mask is a window, restricts the window of the call to that window and returns true. Returns false if that is
/// impossible.
bool takes_window(Problem& p, const BlockTiles& tiles) {
  if (!tiles.band) return false;
  // The call's window is relative to the diagonal that ends at the last row and key. The mask's window is relative to
  // the diagonal that starts at the first row and key.
  const std::int64_t offset = p.max_seqlen_k - p.max_seqlen_q;
  const auto joined = [](std::int64_t own, std::int64_t end, std::int64_t moved) {
    if (end == BlockBand::kOpen) return own;
    return own < 0 ? end + moved : std::min(own, end + moved);
  };
  const std::int64_t left = tiles.band->left, right = tiles.band->right;
  if ((left != BlockBand::kOpen && left + offset < 0) || (right != BlockBand::kOpen && right - offset < 0))
    return false;
  p.window_left = joined(p.window_left, left, offset);
  p.window_right = joined(p.window_right, right, -offset);
  return true;
}

}  // namespace

void resolve_block_mask(Problem& p, const Params& params, bool is_whole) {
  if (params.block_mask == nullptr) return;
  if (!is_whole) refuse("block_mask: given, allowed outside of a ring only");
  if (p.varlen) refuse("block_mask: given with varlen, allowed without varlen only");
  const BlockTiles& tiles = *params.block_mask->state();
  const auto check_one = [](const char* name, std::int64_t found, bool is_asked_for, std::int64_t wanted) {
    if (found != 1 || !is_asked_for || wanted == 1) return;
    refuse("block_mask: {} 1, from a text that reads {}, allowed {}", name, *name == 'b' ? 'b' : 'h', wanted);
  };
  check_one("batch", tiles.batch, tiles.asks_for_batch, p.num_sequences);
  check_one("num_heads", tiles.num_heads, tiles.asks_for_head, p.num_heads_q);
  const auto check = [](const char* what, std::int64_t found, std::int64_t wanted, bool may_be_one) {
    if (found == wanted || (may_be_one && found == 1)) return;
    refuse("block_mask: {} {}, allowed {}{}", what, found, may_be_one ? "1 or " : "the call's ", wanted);
  };
  check("batch", tiles.batch, p.num_sequences, true);
  check("num_heads", tiles.num_heads, p.num_heads_q, true);
  check("seqlen_q", tiles.seqlen_q, p.max_seqlen_q, false);
  check("seqlen_k", tiles.seqlen_k, p.max_seqlen_k, false);
  if (takes_window(p, tiles)) return;
  p.block_mask = &tiles;
}

}  // namespace attend::core
