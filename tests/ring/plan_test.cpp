// Tests the arithmetic of the ring: the position of each rank's rows and keys in the full problem, which rows see which
// keys in each step, and the merge of partial results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/merged_lse.hpp"
#include "kernels/attention/merge_rows.cuh"
#include "ring/engine/merge.hpp"
#include "ring/engine/written_rows.hpp"
#include "ring/plan/plan.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Placement, MasksAsTheWholeDoes) {
  std::mt19937 engine(1);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine); };
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const std::int64_t left = from(-1, 12), right = from(-1, 12);
    const core::Placement part = {0, from(0, 20), from(0, 20), from(1, 5), from(30, 60), from(30, 60)};
    const WindowMask whole = {part.whole_seqlen_q, part.whole_seqlen_k, left, right};
    const std::int64_t seqlen_q = from(1, 6), seqlen_k = from(1, 6);
    const WindowMask window = part.window(seqlen_k, left, right);
    for (std::int64_t i = 0; i < seqlen_q; ++i) {
      for (std::int64_t j = 0; j < seqlen_k; ++j) {
        const std::int64_t row = part.row_begin + part.step * i, key = part.key_begin + part.step * j;
        const bool want = whole.unbounded_row(row).contains(key);
        ASSERT_EQ(window.row(i).contains(j), want) << "row " << row << " key " << key;
        ASSERT_EQ(window.unbounded_rows_of_key(j).contains(i), want) << "row " << row << " key " << key;
        ASSERT_EQ(part.distance(i, j), row + part.whole_seqlen_k - part.whole_seqlen_q - key);
      }
    }
  }
}

ring::Plan plan(Sharding sharding, int num_ranks, std::int64_t seqlen, std::int64_t left, std::int64_t right) {
  core::Problem p;
  p.window_left = left;
  p.window_right = right;
  return {p, {seqlen, seqlen}, sharding, 0, num_ranks};
}

TEST(Plan, KeysTravelAsFarAsSomebodySeesThem) {
  for (int owner = 0; owner < 5; ++owner) {
    EXPECT_EQ(plan(Sharding::kContiguous, 5, 100, -1, -1).last_step(owner), 4);
    EXPECT_EQ(plan(Sharding::kContiguous, 5, 100, -1, 0).last_step(owner), 4 - owner) << "causal";
    EXPECT_EQ(plan(Sharding::kContiguous, 5, 100, 20, 0).last_step(owner), std::min(1, 4 - owner)) << "window of 20";
    EXPECT_EQ(plan(Sharding::kContiguous, 5, 100, 0, 0).last_step(owner), 0) << "the diagonal";
    EXPECT_EQ(plan(Sharding::kStriped, 5, 100, 0, 0).last_step(owner), 0) << "the diagonal";
    EXPECT_EQ(plan(Sharding::kStriped, 5, 100, -1, 0).last_step(owner), 4) << "causal";
    EXPECT_EQ(plan(Sharding::kZigzag, 5, 100, -1, 0).last_step(owner), 4) << "causal";
  }
}

// A piece is a pair of row and key ranges that one kernel launch computes. On GPUs, each piece is masked like a
// separate problem whose mask aligns bottom right.
TEST(Plan, PiecesHaveAWindowOfTheirOwn) {
  std::mt19937 engine(4);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine); };
  int num_pieces = 0;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    core::Problem p;
    // Under a causal mask, the pieces with the keys that belong to the rank itself merge into one.
    const bool is_causal = repeat % 4 == 0;
    p.window_left = is_causal ? -1 : from(-1, 12);
    p.window_right = is_causal ? 0 : from(-1, 12);
    const auto sharding = static_cast<Sharding>(from(0, 2));
    const int num_ranks = static_cast<int>(from(1, 5));
    const std::int64_t seqlen_q = from(0, 40), seqlen_k = is_causal ? seqlen_q : from(0, 40);
    const ring::Plan plan(p, {seqlen_q, seqlen_k}, sharding, static_cast<int>(from(0, num_ranks - 1)), num_ranks);
    for (int owner = 0; owner < num_ranks; ++owner) {
      for (const ring::Piece& piece : plan.pieces(owner)) {
        ++num_pieces;
        p.as_part().placement = piece.placement;
        p.max_seqlen_q = piece.rows.length;
        p.max_seqlen_k = piece.keys.length;
        const auto [left, right] = p.own_window();
        ASSERT_GE(left, -1);
        ASSERT_GE(right, -1);
        const WindowMask own = {p.max_seqlen_q, p.max_seqlen_k, left, right};
        const WindowMask want = piece.placement.window(p.max_seqlen_k, p.window_left, p.window_right);
        for (std::int64_t i = 0; i < p.max_seqlen_q; ++i) {
          ASSERT_EQ(own.row(i).begin, want.row(i).begin) << "row " << i;
          ASSERT_EQ(own.row(i).end, want.row(i).end) << "row " << i;
        }
      }
    }
  }
  EXPECT_GT(num_pieces, 5000);
}

/// Returns the sequence position of every row or key in the runs. A run is a range of positions with a constant step.
std::vector<std::int64_t> positions_of(const std::vector<ring::Run>& runs) {
  std::vector<std::int64_t> positions;
  for (const ring::Run& run : runs) {
    for (std::int64_t i = 0; i < run.length; ++i) positions.push_back(run.position + run.step * i);
  }
  return positions;
}

// A piece is a pair of row and key ranges. The pieces of all ranks together must contain every visible entry of the
// score matrix exactly once.
TEST(Plan, PiecesHoldWhatIsSeen) {
  std::mt19937 engine(2);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine); };
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const auto sharding = static_cast<Sharding>(from(0, 2));
    const int num_ranks = static_cast<int>(from(1, 5));
    core::Problem p;
    // Under a causal mask, the pieces with the keys that belong to the rank itself merge into one.
    const bool is_causal = repeat % 4 == 0;
    p.window_left = is_causal ? -1 : from(-1, 9);
    p.window_right = is_causal ? 0 : from(-1, 9);
    core::WholeLengths lengths = {from(0, 25), from(0, 25)};
    if (is_causal) lengths.seqlen_k = lengths.seqlen_q;
    const WindowMask whole = {lengths.seqlen_q, lengths.seqlen_k, p.window_left, p.window_right};
    std::int64_t want = 0, got = 0;
    for (std::int64_t i = 0; i < lengths.seqlen_q; ++i) want += whole.row(i).end - whole.row(i).begin;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const ring::Plan of_rank(p, lengths, sharding, rank, num_ranks);
      const std::vector<std::int64_t> rows = positions_of(of_rank.rows(rank));
      for (int owner = 0; owner < num_ranks; ++owner) {
        const std::vector<std::int64_t> keys = positions_of(of_rank.keys(owner));
        std::vector<ring::Piece> pieces = of_rank.pieces(owner);
        if (owner == rank && repeat % 2 == 0) {  // the GPU backward pass divides these pieces into two groups
          const ring::OwnPieces own = of_rank.own_pieces(rank);
          pieces = own.first;
          pieces.insert(pieces.end(), own.last.begin(), own.last.end());
        }
        for (const ring::Piece& piece : pieces) {
          const WindowMask window = piece.placement.window(piece.keys.length, p.window_left, p.window_right);
          for (std::int64_t i = 0; i < piece.rows.length; ++i) {
            const KeyRange seen = window.row(i);
            ASSERT_FALSE(seen.empty());
            ASSERT_LE(seen.end, piece.keys.length);
            got += seen.end - seen.begin;
            const KeyRange want_seen = whole.row(rows[static_cast<std::size_t>(piece.rows.local_begin + i)]);
            for (std::int64_t j = 0; j < piece.keys.length; ++j) {
              const std::int64_t key = keys[static_cast<std::size_t>(piece.keys.local_begin + j)];
              ASSERT_EQ(j >= seen.begin && j < seen.end, key >= want_seen.begin && key < want_seen.end);
            }
          }
          for (std::int64_t j = 0; j < piece.keys.length; ++j) {
            ASSERT_FALSE(WindowMask::bounded(window.unbounded_rows_of_key(j), piece.rows.length).empty());
          }
        }
      }
    }
    ASSERT_EQ(got, want) << sharding_name(sharding) << " over " << num_ranks;
  }
}

// On a GPU each piece needs a launch, which reads and writes the partial sums of its rows. Pieces that are adjacent in
// memory must therefore be joined.
TEST(Plan, NeighboursInMemoryAreOnePiece) {
  constexpr int kRanks = 4;
  for (const std::int64_t window_right : {-1, 0}) {
    core::Problem p;
    p.window_left = -1;
    p.window_right = window_right;
    core::Problem dropping = p;
    dropping.dropout_p = 0.5;
    for (int rank = 0; rank < kRanks; ++rank) {
      const core::WholeLengths lengths = {64 * kRanks, 64 * kRanks};
      const ring::Plan joined(p, lengths, Sharding::kZigzag, rank, kRanks);
      const ring::Plan apart(dropping, lengths, Sharding::kZigzag, rank, kRanks);
      for (int owner = 0; owner < kRanks; ++owner) {
        const bool is_own = owner == rank && window_right == 0 && rank != kRanks - 1;
        EXPECT_EQ(joined.pieces(owner).size(), 1U) << rank << " " << owner;
        if (std::max(rank, owner) == kRanks - 1) continue;  // the two chunks of the last rank are adjacent
        EXPECT_EQ(apart.pieces(owner).size(), window_right < 0 ? 4U : is_own ? 3U : 2U) << rank << " " << owner;
      }
    }
  }
}

TEST(Plan, OneRankIsOnePiece) {
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    const auto pieces = plan(sharding, 1, 100, -1, 0).pieces(0);
    ASSERT_EQ(pieces.size(), 1U) << sharding_name(sharding);
    EXPECT_EQ(pieces[0].rows, (ring::Run{0, 0, 100, 0, 1}));
    EXPECT_EQ(pieces[0].keys, (ring::Run{0, 0, 100, 0, 1}));
  }
}

// The pieces with the keys that belong to the rank itself are divided into two groups. On the last rank, both chunks
// are adjacent and form one run. The first group must still have the same number of visible pairs as on other ranks.
TEST(Plan, OwnPiecesAreInTwo) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kChunk = 32;
  const auto pairs = [](const std::vector<ring::Piece>& pieces) {
    std::int64_t sum = 0;
    for (const ring::Piece& piece : pieces) {
      const WindowMask window = piece.placement.window(piece.keys.length, -1, 0);
      for (std::int64_t i = 0; i < piece.rows.length; ++i) sum += window.row(i).end - window.row(i).begin;
    }
    return sum;
  };
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      core::Problem p;
      p.window_left = -1;
      p.window_right = 0;
      const ring::Plan of_rank(p, {2 * kChunk * kRanks, 2 * kChunk * kRanks}, sharding, rank, kRanks);
      const ring::OwnPieces own = of_rank.own_pieces(rank);
      EXPECT_EQ(pairs(own.first), kChunk * (kChunk + 1) / 2) << sharding_name(sharding) << " " << rank;
      EXPECT_EQ(pairs(own.first) + pairs(own.last), pairs(of_rank.pieces(rank))) << sharding_name(sharding);
    }
  }
}

TEST(Plan, ZigzagAndStripedBalanceACausalMask) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kSeqlen = 64 * kRanks;
  const auto imbalance = [](Sharding sharding) {
    double slowest = 0, total = 0;
    for (int step = 0; step < kRanks; ++step) {
      double worst = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        core::Problem p;
        p.window_left = -1;
        p.window_right = 0;
        const ring::Plan of_rank(p, {kSeqlen, kSeqlen}, sharding, rank, kRanks);
        double work = 0;
        for (const ring::Piece& piece : of_rank.pieces(of_rank.owner(step))) {
          const WindowMask window = piece.placement.window(piece.keys.length, -1, 0);
          for (std::int64_t i = 0; i < piece.rows.length; ++i) work += double(window.row(i).end - window.row(i).begin);
        }
        worst = std::max(worst, work);
        total += work;
      }
      slowest += worst;
    }
    EXPECT_EQ(total, kSeqlen * (kSeqlen + 1) / 2.0);
    return slowest / (total / kRanks);
  };
  const double contiguous = imbalance(Sharding::kContiguous), zigzag = imbalance(Sharding::kZigzag),
               striped = imbalance(Sharding::kStriped);
  std::printf("slowest rank of each step / mean: contiguous %.3f zigzag %.3f striped %.3f\n", contiguous, zigzag,
              striped);
  EXPECT_GT(contiguous, 1.7);
  EXPECT_LT(zigzag, 1.02);
  EXPECT_LT(striped, 1.05);
}

// On GPUs the first partial result of a row is stored, not added, because the output memory is uninitialized.
TEST(WrittenRows, AreFreshOnce) {
  std::mt19937 engine(6);
  const auto from = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine); };
  for (int repeat = 0; repeat < 500; ++repeat) {
    ring::WrittenRows written;
    std::vector<bool> has_value(40);
    for (int run = 0; run < 8; ++run) {
      const std::int64_t begin = from(0, 39), end = from(0, 40);
      std::vector<bool> fresh(40);
      std::int64_t before = -1;
      for (const KeyRange& range : written.take(begin, end)) {
        ASSERT_LT(before, range.begin) << "in order, and not two side by side";
        ASSERT_LT(range.begin, range.end);
        for (std::int64_t row = range.begin; row < range.end; ++row) fresh[static_cast<std::size_t>(row)] = true;
        before = range.end;
      }
      for (std::int64_t row = 0; row < 40; ++row) {
        const auto at = static_cast<std::size_t>(row);
        const bool is_in = row >= begin && row < end;
        ASSERT_EQ(fresh[at], is_in && !has_value[at]) << "row " << row;
        has_value[at] = has_value[at] || is_in;
      }
    }
  }
}

TEST(Merge, HoldsTheTableOfCases) {
  struct Row {
    double a, b, lse, weight_a, weight_b;
  };
  const Row rows[] = {{0, 0, std::log(2.0), 0.5, 0.5},
                      {-kInfinity, -kInfinity, -kInfinity, 0, 0},
                      {-kInfinity, 3, 3, 0, 1},
                      {3, -kInfinity, 3, 1, 0},
                      {1e4, -1e4, 1e4, 1, 0},
                      {-1e4, 1e4, 1e4, 0, 1},
                      {-1e308, 1e308, 1e308, 0, 1},
                      {1e5 + std::log(3.0), 1e5, 1e5 + std::log(4.0), 0.75, 0.25},
                      {-2e5, -2e5, -2e5 + std::log(2.0), 0.5, 0.5},
                      {kInfinity, 3, kInfinity, 1, 0},
                      {-kInfinity, kInfinity, kInfinity, 0, 1},
                      {kInfinity, kInfinity, kInfinity, 0.5, 0.5}};
  for (const Row& row : rows) {
    const core::MergedLse got = core::merge_lse(row.a, row.b);
    const auto near = [](double x, double y) {
      return x == y || std::abs(x - y) <= 1e-10 * std::max(1.0, std::abs(y));
    };
    EXPECT_TRUE(near(got.lse, row.lse)) << row.a << " with " << row.b << ": lse " << got.lse;
    EXPECT_TRUE(near(got.weight_a, row.weight_a)) << row.a << " with " << row.b << ": weight a " << got.weight_a;
    EXPECT_TRUE(near(got.weight_b, row.weight_b)) << row.a << " with " << row.b << ": weight b " << got.weight_b;
  }
  for (const double other : {0.0, kInfinity, -kInfinity, kNaN}) {
    EXPECT_TRUE(std::isnan(core::merge_lse(kNaN, other).lse));
    EXPECT_TRUE(std::isnan(core::merge_lse(other, kNaN).lse));
  }
}

// Merges partial results in float32, as GPUs do.
TEST(Merge, InFloatsIsWithinRoundingAndItsWeightsAddUpToOne) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal(0, 6);
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const float a = normal(engine), b = normal(engine);
    const MergedLse got = merged(a, b);
    const core::MergedLse want = core::merge_lse(a, b);
    ASSERT_NEAR(got.lse, want.lse, 2.5e-7 * std::max(1.0, std::abs(want.lse)));
    ASSERT_NEAR(got.before, want.weight_a, 2e-7);
    ASSERT_NEAR(got.part, want.weight_b, 2e-7);
    ASSERT_NEAR(double{got.before} + double{got.part}, 1, 1.2e-7);
  }
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const auto same = [](const MergedLse& x, const MergedLse& y) {
    return x.lse == y.lse && x.before == y.before && x.part == y.part;
  };
  EXPECT_TRUE(same(merged(kNone, kNone), {kNone, 0, 1}));
  EXPECT_TRUE(same(merged(3, kNone), {3, 1, 0}));
  EXPECT_TRUE(same(merged(kNone, 3), {3, 0, 1}));
  EXPECT_TRUE(same(merged(-1e5F, 1e5F), {1e5F, 0, 1}));
  EXPECT_TRUE(std::isnan(merged(static_cast<float>(kNaN), 0).lse));
  EXPECT_TRUE(std::isnan(merged(0, static_cast<float>(kNaN)).part));
}

TEST(Merge, LeavesARowThatSawNothingAtZero) {
  ring::MergedRows merged({1, 1, 2, 3});
  const TensorBuffer o(DType::kF32, {1, 1, 2, 3});  // NaN everywhere, because o must not be read if no key is visible
  const TensorBuffer lse = made(DType::kF64, {1, 1, 2, 1}, [](auto...) { return -kInfinity; });
  merged.add(0, o.view(), lse.view());
  const TensorBuffer part = made(DType::kF32, {1, 1, 1, 3}, [](auto...) { return 2.5; });
  merged.add(1, part.view(), made(DType::kF64, {1, 1, 1, 1}, [](auto...) { return -7.0; }).view());
  const TensorBuffer got_o(DType::kBF16, {1, 1, 2, 3}), got_lse(DType::kF32, {1, 1, 2, 1});
  merged.store(got_o.view(), &got_lse.view());
  EXPECT_EQ(got_o.values(), (std::vector<double>{0, 0, 0, 2.5, 2.5, 2.5}));
  EXPECT_EQ(got_lse.values(), (std::vector<double>{-kInfinity, -7}));
}

}  // namespace
}  // namespace attend::test
