// A rank's share of the work as one device computes it without a ring. `attend ring` compares the ring's time with it.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"

namespace attend::cli {

/// Consecutive rows of a rank and the keys that they see, as a separate call whose mask aligns bottom right.
struct SharePiece {
  std::int64_t row = 0, num_rows = 0;  ///< within the rank's rows
  std::int64_t key = 0, num_keys = 0;  ///< within the complete sequence
  std::int64_t window_left = -1, window_right = -1;
};

/// Returns whether each rank's work is a call for each of a few pieces. It is not for a striped sharding.
[[nodiscard]] bool has_pieces(const RingOptions& options);

/// Returns the rank's rows with the keys that they see, without pieces that see no key. Only for options with
/// has_pieces().
[[nodiscard]] std::vector<SharePiece> share_pieces(const RingOptions& options, int rank, int num_ranks);

/// Returns the average number of visible pairs per rank over that of this rank: 1 if the work is balanced, infinite for
/// a rank without any pair.
[[nodiscard]] double mean_over_own(const RingOptions& options, int rank, int num_ranks);

/// Returns the average number of keys that a row of the complete problem sees.
[[nodiscard]] double mean_keys(const RingOptions& options);

/// Returns the options without causal mask and window.
[[nodiscard]] AttentionOptions unmasked(AttentionOptions attention);

/// Returns `count` rows (or keys) of a tensor, beginning with row `begin`.
[[nodiscard]] Tensor rows_from(Tensor t, std::int64_t begin, std::int64_t count);

}  // namespace attend::cli
