// A rank's share of the work, computed on one device without a ring. `attend ring` compares the time of the ring with
// the time of this computation.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"

namespace attend::cli {

/// Consecutive rows of a rank, and the keys that these rows see. Each piece is computed by a separate call, whose mask
/// is aligned to the bottom right corner.
struct SharePiece {
  std::int64_t row = 0, num_rows = 0;  ///< first row, counted in the rank's rows, and number of rows
  std::int64_t key = 0, num_keys = 0;  ///< first key, counted in the complete sequence, and number of keys
  std::int64_t window_left = -1, window_right = -1;
};

/// Returns whether a rank's work can be split into a few pieces. This is not possible with striped tokens.
[[nodiscard]] bool has_pieces(const RingOptions& options);

/// Returns the pieces of a rank's work. Pieces whose rows see no key are left out. has_pieces() must be true.
[[nodiscard]] std::vector<SharePiece> share_pieces(const RingOptions& options, int rank, int num_ranks);

/// Returns the average number of visible pairs per rank, divided by the number of visible pairs of this rank. The
/// result is 1 if the work is balanced, and infinite if this rank has no visible pair.
[[nodiscard]] double mean_over_own(const RingOptions& options, int rank, int num_ranks);

/// Returns the average number of keys that a row of the complete problem sees.
[[nodiscard]] double mean_keys(const RingOptions& options);

/// Returns the options without a causal mask and without a window.
[[nodiscard]] AttentionOptions unmasked(AttentionOptions attention);

/// Returns a view of `count` rows (or keys) of a tensor, starting with row `begin`.
[[nodiscard]] Tensor rows_from(Tensor t, std::int64_t begin, std::int64_t count);

}  // namespace attend::cli
