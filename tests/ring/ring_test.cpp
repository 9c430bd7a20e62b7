// What ring attention promises beyond its budgets: one rank is one device, runs are repeatable, nothing travels for
// nobody, and what is not finite goes where it belongs.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "ring/ring_run.hpp"
#include "ring/transport.hpp"
#include "support/compare.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr Sharding kShardings[] = {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped};

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

// As long as every row and key has something to see: what has not is left out, which moves the tiles.
TEST(Ring, OfOneRankGivesTheForwardOfOneDeviceBitByBit) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionCase c = kEverything;
    c.dtype = dtype;
    const Inputs in = make_inputs(c);
    const Outputs one = run(in, "cpu");
    for (const Sharding sharding : kShardings) {
      const Outputs got = run_on_ring(in, {c, sharding, 1});
      expect_same_bits("o", got.o, one.o);
      expect_near("lse", got.lse.values(), one.lse.values(), 0x1p-23);  // rounded from float64, not added in float32
    }
  }
}

TEST(Ring, IsRepeatable) {
  const Inputs in = make_inputs(kEverything);
  for (const Sharding sharding : kShardings) {
    const RingCase c = {kEverything, sharding, 4};
    const std::vector<RingContext> ranks = make_thread_ring(c.num_ranks);
    const Outputs first = run_on_ring(ranks, in, c);
    for (int repeat = 0; repeat < 5; ++repeat) expect_same_bits(run_on_ring(ranks, in, c), first);
  }
}

// With the reference on every rank nothing is left but the order of float64 sums: every option is exactly that of one
// device, each dropped entry too.
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
      for (const int num_ranks : {2, 5}) {
        SCOPED_TRACE(std::string(sharding_name(sharding)) + " over " + std::to_string(num_ranks));
        expect_near(run_on_ring(in, {problem, sharding, num_ranks}), want, property_tolerance(DType::kF64));
      }
    }
  }
}

// A key or value that is not finite reaches the rows that see it, on whatever rank they are, and no others.
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
  }
}

/// Counts the bytes that a rank sends by channel.
class CountingTransport : public ring::Transport {
 public:
  CountingTransport(RingContext context, std::atomic<std::int64_t>* bytes)
      : context_(std::move(context)), bytes_(bytes) {}
  [[nodiscard]] int rank() const override { return context_.rank(); }
  [[nodiscard]] int size() const override { return context_.size(); }
  [[nodiscard]] std::unique_ptr<ring::Pending> send(int to, ring::Channel channel,
                                                    std::span<const std::byte> bytes) override {
    bytes_[static_cast<std::size_t>(channel)] += static_cast<std::int64_t>(bytes.size());
    return context_.transport().send(to, channel, bytes);
  }
  [[nodiscard]] std::unique_ptr<ring::Pending> receive(int from, ring::Channel channel,
                                                       std::span<std::byte> bytes) override {
    return context_.transport().receive(from, channel, bytes);
  }
  void fail(const std::string& why) override { context_.transport().fail(why); }

 private:
  RingContext context_;
  std::atomic<std::int64_t>* bytes_;
};

// docs/ring.md states these counts.
TEST(Ring, SendsKeysToNobodyWhoSeesNone) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kKeysOfRank = 16;
  constexpr std::int64_t kHeadDim = 16;
  constexpr std::int64_t kBlockBytes = kKeysOfRank * 2 * kHeadDim * 2;     // k and v in bf16
  constexpr std::int64_t kGradientBytes = kKeysOfRank * 2 * kHeadDim * 4;  // dk and dv in float32
  struct Wanted {
    Sharding sharding;
    bool causal;
    std::int64_t window_left;
    std::int64_t hops;           // of blocks, forward and backward together 2 x
    std::int64_t gradient_hops;  // one more where sums go home
  };
  for (const Wanted& w : {Wanted{Sharding::kContiguous, false, -1, 12, 16},
                          Wanted{Sharding::kContiguous, true, -1, 6, 9}, Wanted{Sharding::kContiguous, true, 10, 3, 6},
                          Wanted{Sharding::kZigzag, true, -1, 12, 16}, Wanted{Sharding::kStriped, true, -1, 12, 16}}) {
    AttentionCase c = {.dtype = DType::kBF16, .seqlen_q = kRanks * kKeysOfRank, .seqlen_k = kRanks * kKeysOfRank};
    c.head_dim = c.head_dim_v = kHeadDim;
    c.causal = w.causal;
    c.window_left = w.window_left;
    std::atomic<std::int64_t> bytes[3] = {};
    std::vector<RingContext> ranks;
    for (const RingContext& rank : make_thread_ring(kRanks)) {
      ranks.emplace_back(std::make_shared<CountingTransport>(rank, bytes));
    }
    (void)run_on_ring(ranks, make_inputs(c), {c, w.sharding, kRanks});
    EXPECT_EQ(bytes[static_cast<std::size_t>(ring::Channel::kKeysValues)], 2 * w.hops * kBlockBytes)
        << sharding_name(w.sharding) << " causal " << w.causal << " window " << w.window_left;
    EXPECT_EQ(bytes[static_cast<std::size_t>(ring::Channel::kKeyGradients)], w.gradient_hops * kGradientBytes)
        << sharding_name(w.sharding) << " causal " << w.causal << " window " << w.window_left;
  }
}

// Parts in 16 bits would show here: with 16 ranks the error of bf16 stays that of one rounding.
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

// Rows that keep one key: dq and dk are 0, if only <dout, o> is of an o that was not rounded to 16 bits.
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
