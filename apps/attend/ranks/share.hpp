// A rank's share of the work as one device does it, without a ring: what `attend ring` holds a ring's time against.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"

namespace attend::cli {

/// Consecutive rows of a rank, and the keys that they see: a call of its own, whose mask aligns bottom right.
struct SharePiece {
  std::int64_t row = 0, num_rows = 0;  ///< from the rank's row on
  std::int64_t key = 0, num_keys = 0;  ///< of the whole sequence
  std::int64_t window_left = -1, window_right = -1;
};

/// Whether each rank's work is a call for each of a few pieces: not where tokens are dealt out in stripes.
[[nodiscard]] bool has_pieces(const RingOptions& options);

/// The rank's rows against the keys that they see. A piece without keys is left out. For options with has_pieces().
[[nodiscard]] std::vector<SharePiece> share_pieces(const RingOptions& options, int rank, int num_ranks);

/// Visible pairs of rows and keys that a rank has in the mean, over those of this rank: 1 where the work is balanced.
/// Infinite for a rank without any.
[[nodiscard]] double mean_over_own(const RingOptions& options, int rank, int num_ranks);

/// Keys that a row of the whole sees in the mean.
[[nodiscard]] double mean_keys(const RingOptions& options);

/// The options without causal mask and window.
[[nodiscard]] AttentionOptions unmasked(AttentionOptions attention);

/// `count` rows (or keys) of a tensor from number `begin` on.
[[nodiscard]] Tensor rows_from(Tensor t, std::int64_t begin, std::int64_t count);

}  // namespace attend::cli
