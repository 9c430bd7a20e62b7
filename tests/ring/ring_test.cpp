// Tests guarantees of ring attention other than its error budgets. One rank gives the result of one device. Runs are
// repeatable. No unneeded data is sent. Non-finite values reach only the results that depend on them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ring/ring_run.hpp"
#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr Sharding kShardings[] = {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped};
constexpr RingAlgorithm kAlgorithms[] = {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll,
                                         RingAlgorithm::kTwoLevel};

const AttentionCase kEverything = {.dtype = DType::kBF16,
                                   .batch = 2,
                                   .heads_q = 4,
                                   .heads_k = 2,
                                   .seqlen_q = 150,
                                   .seqlen_k = 171,
                                   .head_dim = 24,
                                   .head_dim_v = 40,
                                   .causal = true,
                                   .window_left = 100,
                                   .softcap = 5,
                                   .alibi = true,
                                   .bias = Broadcast{true, false, true},
                                   .mask = Broadcast{false, true, false},
                                   .dropout_p = 0.25,
                                   .dlse = true,
                                   .seed = 71};

// The bits are equal only if every row sees a key and every key is seen. Otherwise the ring skips rows or keys, which
// shifts the tiles.
TEST(Ring, OfOneRankGivesTheForwardOfOneDeviceBitByBit) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionCase c = kEverything;
    c.dtype = dtype;
    const Inputs in = make_inputs(c);
    const Outputs one = run(in, "cpu");
    for (const Sharding sharding : kShardings) {
      const Outputs got = run_on_ring(in, {c, sharding, 1});
      expect_same_bits("o", got.o, one.o);
      // The ring rounds lse from float64, while a single device sums it in float32.
      expect_near("lse", got.lse.values(), one.lse.values(), 0x1p-23);
    }
  }
}

// In this algorithm a rank has all rows and keys of some heads, so it calls the backend as a single device does. With
// dropout it makes one call per sequence.
TEST(Ring, OfHeadsGivesTheForwardOfOneDeviceBitByBit) {
  AttentionCase c = kEverything;
  c.heads_q = 8;
  c.heads_k = 4;
  c.causal = false;
  c.window_left = -1;
  AttentionCase outliers = {.dtype = DType::kF16, .heads_q = 14, .heads_k = 7, .seqlen_q = 2, .seqlen_k = 3};
  outliers.fill = Fill::kOutlier;
  outliers.alibi = true;
  for (const auto& [problem, num_ranks] : {std::pair{c, 4}, {outliers, 7}}) {
    const Inputs in = make_inputs(problem);
    const Outputs one = run(in, "cpu");
    for (const Sharding sharding : kShardings) {
      const Outputs got = run_on_ring(in, {problem, sharding, num_ranks, RingAlgorithm::kAllToAll});
      expect_same_bits("o", got.o, one.o);
      expect_near("lse", got.lse.values(), one.lse.values(), 0x1p-23);
    }
  }
}

// v is the identity matrix, so o shows the kept entries.
TEST(Ring, DropsTheVeryEntriesOfOneDevice) {
  AttentionCase c = {.batch = 2, .heads_q = 8, .heads_k = 4, .seqlen_q = 45, .seqlen_k = 45};
  c.head_dim = 16;
  c.head_dim_v = 45;
  c.dropout_p = 0.5;
  c.seed = 75;
  AttentionCase packed = c;
  packed.varlen_q = packed.varlen_k = {13, 0, 20, 12};
  for (const AttentionCase& problem : {c, packed}) {
    const Inputs in = make_inputs(problem);
    in.v.generate([](auto, auto, std::int64_t row, std::int64_t col) { return row == col ? 1.0 : 0.0; });
    const std::vector<double> want = run(in, "cpu").o.values();
    for (const RingAlgorithm algorithm : kAlgorithms) {
      for (const Sharding sharding : kShardings) {
        const RingCase ring = {problem, sharding, 4, algorithm};
        const std::vector<double> got = run_on_ring(in, ring).o.values();
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_EQ(got[i] == 0, want[i] == 0) << i << " " << describe(ring);
      }
    }
  }
}

TEST(Ring, IsRepeatable) {
  AttentionCase problem = kEverything;
  problem.heads_k = 4;
  const Inputs in = make_inputs(problem);
  for (const RingAlgorithm algorithm : kAlgorithms) {
    const RingCase c = {problem, Sharding::kZigzag, 4, algorithm};
    const std::vector<RingContext> ranks = make_thread_ring(c.num_ranks);
    const Outputs first = run_on_ring(ranks, in, c);
    for (int repeat = 0; repeat < 3; ++repeat) expect_same_bits(run_on_ring(ranks, in, c), first);
  }
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kStriped}) {
    const RingCase c = {problem, sharding, 4};
    const std::vector<RingContext> ranks = make_thread_ring(c.num_ranks);
    const Outputs first = run_on_ring(ranks, in, c);
    for (int repeat = 0; repeat < 3; ++repeat) expect_same_bits(run_on_ring(ranks, in, c), first);
  }
}

// Each rank uses the float64 reference, so only the order of sums differs from a single device. Every option must give
// the result of a single device, including each dropped entry.
TEST(Ring, InFloat64IsOneDevice) {
  AttentionCase c = kEverything;
  c.dtype = DType::kF64;
  AttentionCase packed = c;
  packed.bias.reset();
  packed.mask.reset();
  packed.alibi_per_sequence = true;
  packed.varlen_q = {40, 0, 3, 77};
  packed.varlen_k = {51, 9, 0, 60};
  for (const AttentionCase& problem : {c, packed}) {
    const Inputs in = make_inputs(problem);
    Outputs want = run(in, "reference");
    want.dbias.reset();
    for (const Sharding sharding : kShardings) {
      for (const auto& [num_ranks, algorithm] : {std::pair{2, RingAlgorithm::kExchange},
                                                 {5, RingAlgorithm::kExchange},
                                                 {2, RingAlgorithm::kAllToAll},
                                                 {2, RingAlgorithm::kAllGather},
                                                 {5, RingAlgorithm::kAllGather},
                                                 {4, RingAlgorithm::kTwoLevel},
                                                 {2, RingAlgorithm::kAutomatic},
                                                 {3, RingAlgorithm::kAutomatic}}) {
        const RingCase ring = {problem, sharding, num_ranks, algorithm};
        SCOPED_TRACE(describe(ring));
        expect_near(run_on_ring(in, ring), want, property_tolerance(DType::kF64));
      }
    }
  }
}

// A key or value that is not finite must reach the rows that see it, on any rank, and no other rows.
TEST(Ring, SendsNaNAndInfinityWhereTheyBelong) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  AttentionCase c = {.heads_q = 2, .heads_k = 1, .seqlen_q = 60, .seqlen_k = 60, .head_dim = 8, .head_dim_v = 8};
  c.causal = true;
  c.seed = 72;
  const Inputs in = make_inputs(c);
  in.k.set(0, 0, 33, 1, std::nan(""));
  in.v.set(0, 0, 48, 2, kInfinity);
  in.q.set(0, 1, 20, 3, std::nan(""));
  const Outputs want = run(in, "reference");
  for (const Sharding sharding : kShardings) {
    SCOPED_TRACE(sharding_name(sharding));
    expect_near(run_on_ring(in, {c, sharding, 3}), want, property_tolerance(DType::kF32));
    expect_near(run_on_ring(in, {c, sharding, 3, RingAlgorithm::kAllGather}), want, property_tolerance(DType::kF32));
  }
}

// If partial results were rounded to 16 bits, the error would grow with the number of ranks. With 16 ranks the bf16
// error must stay that of a single rounding.
TEST(Ring, RoundsOnceHoweverManyRanks) {
  AttentionCase c = {.dtype = DType::kBF16, .heads_q = 2, .heads_k = 2, .seqlen_q = 96, .seqlen_k = 256};
  c.head_dim = c.head_dim_v = 32;
  c.seed = 73;
  const Inputs in = make_inputs(c);
  const Outputs truth = run(as_f64(in), "reference");
  const Outputs got = run_on_ring(in, {c, Sharding::kStriped, 16});
  const std::vector<double> o = got.o.values(), want = truth.o.values();
  for (std::size_t n = 0; n < o.size(); ++n) {
    ASSERT_LE(std::abs(o[n] - want[n]), 1.01 * unit_roundoff(DType::kBF16) * std::abs(want[n]) + 1e-6) << n;
  }
}

// If dropout keeps one key of a row, the row's dq and dk are exactly 0. They are exactly 0 only if <dout, o> is
// computed with o before o is rounded to 16 bits.
TEST(Ring, GradientsCancelUnderHeavyDropout) {
  AttentionCase c = {.heads_q = 4, .heads_k = 2, .seqlen_q = 200, .seqlen_k = 200, .head_dim = 32, .head_dim_v = 64};
  c.window_left = c.window_right = 0;
  c.dropout_p = 0.9;
  c.seed = 51;
  AttentionCase few_keys = c;
  few_keys.window_left = 2;
  few_keys.window_right = 1;
  few_keys.dlse = true;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    c.dtype = few_keys.dtype = dtype;
    for (const Sharding sharding : kShardings) {
      const Outputs out = run_on_ring(make_inputs(c), {c, sharding, 3});
      EXPECT_LE(largest_magnitude(out.dq.values()), 1e-4);
      EXPECT_LE(largest_magnitude(out.dk.values()), 1e-4);
      const Inputs in = make_inputs(few_keys);
      const Outputs got = run_on_ring(in, {few_keys, sharding, 3});
      const Outputs truth = run(as_f64(in), "reference");
      expect_near("dq", got.dq.values(), truth.dq.values(), unit_roundoff(dtype));
      expect_near("dk", got.dk.values(), truth.dk.values(), unit_roundoff(dtype));
    }
  }
}

TEST(Ring, MayLeaveLseOut) {
  const RingCase c = {kEverything, Sharding::kZigzag, 3};
  const Inputs in = make_inputs(kEverything);
  const Outputs want = run_on_ring(in, c);
  const std::vector<RingContext> ranks = make_thread_ring(3);
  const auto thrown = on_threads(3, [&](int rank) {
    const RankTensors t = rank_tensors(in, c, rank);
    ring_forward(ranks[static_cast<std::size_t>(rank)], t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(),
                 nullptr, t.in.params("cpu"), c.sharding);
    const std::vector<std::int64_t> rows = shard_positions(c.sharding, 150, rank, 3);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (t.out.o.at(1, 3, std::int64_t(row), 5) != want.o.at(1, 3, rows[row], 5))
        throw std::runtime_error("o differs");
    }
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace attend::test
