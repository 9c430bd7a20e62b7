// Tests the work of one rank, measured without a ring. The rank's work consists of pieces. Together the pieces must
// contain each visible pair of a key and one of the rank's rows exactly once.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "kernels/attention/key_range.cuh"
#include "ranks/share.hpp"

namespace attend::test {
namespace {

using Pairs = std::multiset<std::pair<std::int64_t, std::int64_t>>;

/// Adds the visible pairs to `pairs`. Row i of the mask is rows[first_row + i] of the full problem, and key j is
/// first_key + j.
void add_pairs(const WindowMask& mask, const std::vector<std::int64_t>& rows, std::int64_t first_row,
               std::int64_t first_key, Pairs& pairs) {
  for (std::int64_t row = 0; row < mask.seqlen_q; ++row) {
    const KeyRange keys = mask.row(row);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      pairs.emplace(rows[static_cast<std::size_t>(first_row + row)], first_key + key);
    }
  }
}

struct Lengths {
  std::int64_t q, k;
};

void expect_all_pairs(Lengths lengths, std::int64_t left, std::int64_t right, Sharding sharding) {
  constexpr int kRanks = 3;
  cli::RingOptions options;
  options.spec.seqlen_q = lengths.q, options.spec.seqlen_k = lengths.k;
  options.ring.sharding = sharding;
  options.attention.causal = left < 0 && right == 0;
  options.attention.window_left = left, options.attention.window_right = options.attention.causal ? -1 : right;
  const WindowMask whole = {lengths.q, lengths.k, left, right};
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::int64_t> rows = shard_positions(sharding, lengths.q, rank, kRanks);
    Pairs wanted, found;
    for (const std::int64_t row : rows) {
      const KeyRange keys = whole.row(row);
      for (std::int64_t key = keys.begin; key < keys.end; ++key) wanted.emplace(row, key);
    }
    for (const cli::SharePiece& p : cli::share_pieces(options, rank, kRanks)) {
      EXPECT_EQ(left < 0, p.window_left < 0);
      EXPECT_EQ(right < 0, p.window_right < 0);
      add_pairs({p.num_rows, p.num_keys, p.window_left, p.window_right}, rows, p.row, p.key, found);
    }
    EXPECT_EQ(found, wanted) << lengths.q << " rows, " << lengths.k << " keys, window " << left << " " << right
                             << ", rank " << rank;
    if (wanted.empty()) continue;
    const double mean = cli::mean_keys(options) * static_cast<double>(lengths.q) / kRanks;
    EXPECT_NEAR(cli::mean_over_own(options, rank, kRanks), mean / static_cast<double>(wanted.size()), 1e-12);
  }
}

TEST(RingShare, SeesWhatTheRanksRowsSee) {
  for (const Lengths lengths : {Lengths{23, 23}, {23, 40}, {40, 23}, {5, 64}}) {
    for (const auto& [left, right] : {std::pair{-1, 0}, {7, 0}, {-1, 5}, {3, 4}, {9, -1}, {0, 0}, {-1, -1}}) {
      for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag}) {
        expect_all_pairs(lengths, left, right, sharding);
      }
    }
  }
}

TEST(RingShare, HasNoPiecesOfStripes) {
  cli::RingOptions options;
  EXPECT_TRUE(cli::has_pieces(options));
  options.ring.sharding = Sharding::kStriped;
  EXPECT_FALSE(cli::has_pieces(options));
}

}  // namespace
}  // namespace attend::test
