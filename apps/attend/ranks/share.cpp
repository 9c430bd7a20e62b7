#include "ranks/share.hpp"

#include <cstddef>

#include "kernels/attention/key_range.cuh"

namespace attend::cli {
namespace {

WindowMask mask_of(const RingOptions& options) {
  const AttentionOptions& a = options.attention;
  return {options.spec.seqlen_q, options.spec.seqlen_k, a.window_left, a.causal ? 0 : a.window_right};
}

double keys_of(const WindowMask& mask, std::int64_t row) {
  const KeyRange range = mask.row(row);
  return range.empty() ? 0 : static_cast<double>(range.end - range.begin);
}

}  // namespace

bool has_pieces(const RingOptions& options) {
  return options.ring.sharding != Sharding::kStriped;
}

std::vector<SharePiece> share_pieces(const RingOptions& options, int rank, int num_ranks) {
  const WindowMask mask = mask_of(options);
  const std::vector<std::int64_t> positions =
      shard_positions(options.ring.sharding, options.spec.seqlen_q, rank, num_ranks);
  const auto count = static_cast<std::int64_t>(positions.size());
  std::vector<SharePiece> pieces;
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    const std::int64_t first = positions[static_cast<std::size_t>(begin)];
    while (end < count && positions[static_cast<std::size_t>(end)] == first + end - begin) ++end;
    const KeyRange keys = mask.rows(first, first + end - begin);
    if (keys.empty()) continue;
    SharePiece piece = {begin, end - begin, keys.begin, keys.end - keys.begin, mask.window_left, mask.window_right};
    // A separate call aligns its mask to the bottom right corner of the piece. `shift` is the number of keys by which
    // this diagonal differs from the diagonal of the complete problem.
    const std::int64_t shift =
        first + options.spec.seqlen_k - options.spec.seqlen_q - keys.begin - (piece.num_keys - piece.num_rows);
    if (piece.window_left >= 0) piece.window_left -= shift;
    if (piece.window_right >= 0) piece.window_right += shift;
    pieces.push_back(piece);
  }
  return pieces;
}

double mean_over_own(const RingOptions& options, int rank, int num_ranks) {
  const WindowMask mask = mask_of(options);
  double own = 0;
  for (const std::int64_t row : shard_positions(options.ring.sharding, mask.seqlen_q, rank, num_ranks)) {
    own += keys_of(mask, row);
  }
  return mean_keys(options) * static_cast<double>(mask.seqlen_q) / num_ranks / own;
}

double mean_keys(const RingOptions& options) {
  const WindowMask mask = mask_of(options);
  double keys = 0;
  for (std::int64_t row = 0; row < mask.seqlen_q; ++row) keys += keys_of(mask, row);
  return keys / static_cast<double>(mask.seqlen_q);
}

AttentionOptions unmasked(AttentionOptions attention) {
  attention.causal = false;
  attention.window_left = attention.window_right = -1;
  return attention;
}

Tensor rows_from(Tensor t, std::int64_t begin, std::int64_t count) {
  t.data = static_cast<std::byte*>(t.data) + begin * t.stride[2] * static_cast<std::int64_t>(dtype_bytes(t.dtype));
  t.shape[2] = count;
  return t;
}

}  // namespace attend::cli
