// Tests which bytes ranks send. A rank must not send data that the receiver does not need. For every algorithm, the
// amount must equal the amount that explain_ring() reports. Also tests the other fields of that report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>

#include "ring/plan/choice.hpp"
#include "ring/ring_run.hpp"
#include "ring/transport/transport.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr std::size_t kChannels = 4;
using Traffic = std::array<std::atomic<std::int64_t>, kChannels>;

/// Transport that counts the bytes that a rank sends on each channel.
class CountingTransport : public ring::Transport {
 public:
  CountingTransport(RingContext context, Traffic& bytes) : context_(std::move(context)), bytes_(bytes) {}
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
  Traffic& bytes_;
};

/// Runs the case and returns, for each rank, the bytes that it sent on each channel.
std::vector<Traffic> traffic_of(const RingCase& c, bool forward_only = false) {
  std::vector<Traffic> bytes(static_cast<std::size_t>(c.num_ranks));
  std::vector<RingContext> ranks;
  for (const RingContext& rank : make_thread_ring(c.num_ranks)) {
    ranks.emplace_back(std::make_shared<CountingTransport>(rank, bytes[static_cast<std::size_t>(rank.rank())]));
  }
  const Inputs in = make_inputs(c.problem);
  if (!forward_only) {
    (void)run_on_ring(ranks, in, c);
    return bytes;
  }
  const std::vector<RankTensors> tensors = cut(in, c);
  const auto thrown = on_threads(c.num_ranks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    ring_forward_of(ranks[at], tensors[at], c, "auto");
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "");
  return bytes;
}

std::int64_t total(const std::vector<Traffic>& bytes, ring::Channel channel) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}, [&](std::int64_t sum, const Traffic& t) {
    return sum + t[static_cast<std::size_t>(channel)];
  });
}

constexpr int kRanks = 4;
constexpr std::int64_t kKeysOfRank = 16;
constexpr std::int64_t kHeadDim = 16;

AttentionCase problem_of(bool causal, std::int64_t window_left, std::int64_t heads = 1) {
  AttentionCase c = {.dtype = DType::kBF16, .seqlen_q = kRanks * kKeysOfRank, .seqlen_k = kRanks * kKeysOfRank};
  c.batch = 1;
  c.heads_q = c.heads_k = heads;
  c.head_dim = c.head_dim_v = kHeadDim;
  c.causal = causal;
  c.window_left = window_left;
  return c;
}

struct Wanted {
  Sharding sharding;
  bool causal;
  std::int64_t window_left;
  std::int64_t hops;  // number of transfers of key blocks per pass
  // Number of transfers of gradient blocks, including the last one to the rank that owns the keys.
  std::int64_t gradient_hops;
};

void expect_traffic(const Wanted& w, RingAlgorithm algorithm) {
  constexpr std::int64_t kBlockBytes = kKeysOfRank * 2 * kHeadDim * 2;     // bytes of k and v of one rank, in bf16
  constexpr std::int64_t kGradientBytes = kKeysOfRank * 2 * kHeadDim * 4;  // bytes of dk and dv of one rank, in float32
  const RingCase c = {problem_of(w.causal, w.window_left), w.sharding, kRanks, algorithm};
  const std::vector<Traffic> bytes = traffic_of(c);
  EXPECT_EQ(total(bytes, ring::Channel::kKeysValues), 2 * w.hops * kBlockBytes) << describe(c);
  EXPECT_EQ(total(bytes, ring::Channel::kKeyGradients), w.gradient_hops * kGradientBytes) << describe(c);
  EXPECT_EQ(total(bytes, ring::Channel::kHeads), 0) << describe(c);
}

// docs/ring.md states these numbers of transfers.
TEST(Traffic, SendsKeysToNobodyWhoSeesNone) {
  for (const Wanted& w : {Wanted{Sharding::kContiguous, false, -1, 12, 16},
                          Wanted{Sharding::kContiguous, true, -1, 6, 9}, Wanted{Sharding::kContiguous, true, 10, 3, 6},
                          Wanted{Sharding::kZigzag, true, -1, 12, 16}, Wanted{Sharding::kStriped, true, -1, 12, 16}}) {
    expect_traffic(w, RingAlgorithm::kExchange);
  }
  for (const Wanted& w : {Wanted{Sharding::kContiguous, false, -1, 12, 12},
                          Wanted{Sharding::kContiguous, true, -1, 6, 6}, Wanted{Sharding::kContiguous, true, 10, 3, 3},
                          Wanted{Sharding::kZigzag, true, -1, 12, 12}, Wanted{Sharding::kStriped, true, -1, 12, 12}}) {
    expect_traffic(w, RingAlgorithm::kAllGather);
  }
}

TEST(Traffic, OfHeadsIsAShareOfEachTensor) {
  const RingCase c = {problem_of(true, -1, 4), Sharding::kZigzag, kRanks, RingAlgorithm::kAllToAll};
  const std::int64_t rows = kRanks * kKeysOfRank * 4;  // number of rows, over all heads and all ranks
  const std::int64_t sent = rows * (kRanks - 1) / kRanks;
  // Bytes per row: q, k and v are bf16, o is float32, and lse is float64.
  const std::int64_t q = kHeadDim * 2, lse = 8, o = kHeadDim * 4;
  EXPECT_EQ(total(traffic_of(c, true), ring::Channel::kHeads), sent * (3 * q + o + lse));
}

RingProblem explained(const AttentionCase& c, int num_ranks, bool is_backward) {
  return {.num_ranks = num_ranks,
          .dtype = c.dtype,
          .batch = c.batch,
          .num_heads_q = c.heads_q,
          .num_heads_k = c.heads_k,
          .seqlen_q = c.seqlen_q,
          .seqlen_k = c.seqlen_k,
          .head_dim = c.head_dim,
          .head_dim_v = c.head_dim_v,
          .is_backward = is_backward};
}

const RingCandidate& of(const std::vector<RingCandidate>& all, RingAlgorithm algorithm) {
  for (const RingCandidate& c : all) {
    if (c.algorithm == algorithm) return c;
  }
  throw std::runtime_error("an algorithm is missing");
}

// In these problems every rank sends the same amount. Therefore the sum of the largest messages of all steps equals the
// number of bytes that each rank sends.
TEST(ExplainRing, CountsTheBytesThatTravel) {
  for (const RingAlgorithm algorithm :
       {RingAlgorithm::kExchange, RingAlgorithm::kAllGather, RingAlgorithm::kAllToAll, RingAlgorithm::kTwoLevel}) {
    for (const auto& [sharding, causal] : {std::pair{Sharding::kContiguous, false}, {Sharding::kZigzag, true}}) {
      RingCase c = {problem_of(causal, -1, kRanks), sharding, kRanks, algorithm};
      // Each tensor of a message then has a multiple of 256 bytes, so no padding is sent.
      c.problem.seqlen_q = c.problem.seqlen_k = kRanks * 64;
      Params params = {.causal = causal};
      const auto forward = explain_ring(explained(c.problem, kRanks, false), params, c.ring_params());
      const auto backward = explain_ring(explained(c.problem, kRanks, true), params, c.ring_params());
      const std::vector<Traffic> bytes = traffic_of(c);
      for (const Traffic& rank : bytes) {
        const std::int64_t sent = rank[static_cast<std::size_t>(ring::Channel::kKeysValues)] +
                                  rank[static_cast<std::size_t>(ring::Channel::kKeyGradients)] +
                                  rank[static_cast<std::size_t>(ring::Channel::kHeads)];
        EXPECT_EQ(of(forward, algorithm).sent_bytes + of(backward, algorithm).sent_bytes, sent) << describe(c);
      }
    }
  }
}

TEST(ExplainRing, ChoosesByTheLeastTime) {
  for (const DeviceType device : {DeviceType::kCPU, DeviceType::kCUDA}) {
    for (const std::int64_t seqlen : {512, 32768, 1 << 20}) {
      for (const int num_ranks : {2, 3, 8}) {
        RingProblem problem = explained(problem_of(true, -1, 16), num_ranks, false);
        problem.device = device;
        problem.seqlen_q = problem.seqlen_k = seqlen;
        problem.head_dim = problem.head_dim_v = 128;
        const std::vector<RingCandidate> all = explain_ring(problem, {.causal = true});
        ASSERT_EQ(all.size(), 4U);
        int chosen = 0;
        for (const RingCandidate& c : all) {
          EXPECT_TRUE(c.estimated_us > 0 || !c.lack.empty());
          if (!c.chosen) continue;
          ++chosen;
          for (const RingCandidate& other : all) {
            EXPECT_TRUE(c.estimated_us <= other.estimated_us || !other.lack.empty());
          }
        }
        EXPECT_EQ(chosen, 1);
      }
    }
  }
}

TEST(ExplainRing, PrefersWhatTheSizesAsk) {
  const auto choice = [](RingProblem problem, const Params& params) {
    problem.device = DeviceType::kCUDA;
    problem.head_dim = problem.head_dim_v = 128;
    for (const RingCandidate& c : explain_ring(problem, params)) {
      if (c.chosen) return c.algorithm;
    }
    return RingAlgorithm::kAutomatic;
  };
  RingProblem problem = {
      .num_ranks = 4, .num_heads_q = 16, .num_heads_k = 16, .seqlen_q = 1 << 17, .seqlen_k = 1 << 17};
  // The computation of a step takes longer than its transfer.
  EXPECT_EQ(choice(problem, {.causal = true}), RingAlgorithm::kExchange);
  problem.seqlen_q = problem.seqlen_k = 2048;
  // Four ranks cannot divide one key head, and the transfer takes longer than the computation of a step.
  problem.num_heads_k = 1;
  EXPECT_EQ(choice(problem, {.causal = true}), RingAlgorithm::kAllGather);
}

TEST(ExplainRing, RefusesInOneLine) {
  const auto text = [](const RingProblem& problem, const RingParams& ring_params) -> std::string {
    try {
      (void)explain_ring(problem, {}, ring_params);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  RingProblem problem = explained(problem_of(true, -1, 6), 4, false);
  EXPECT_EQ(text(problem, {Sharding::kZigzag, RingAlgorithm::kAllToAll}),
            "q: 6 heads, allowed a multiple of the 4 ranks with algorithm all_to_all");
  problem.num_ranks = 7;
  EXPECT_EQ(
      text(problem, {Sharding::kZigzag, RingAlgorithm::kTwoLevel}),
      "num_ranks: 7 with 6 heads of q and 6 of k, allowed with algorithm two_level: a larger multiple of a number "
      "above 1 that divides both");
  problem.num_ranks = 0;
  EXPECT_EQ(text(problem, {}), "num_ranks: 0, allowed >= 1");
  problem.num_ranks = 2;
  problem.seqlen_k = -1;
  EXPECT_EQ(text(problem, {}), "seqlen_k: -1, allowed 0 to 2147483647");
}

TEST(VisiblePairs, AreThoseThatAreCounted) {
  for (const std::int64_t m : {1, 3, 8}) {
    for (const std::int64_t n : {1, 4, 9}) {
      for (std::int64_t begin = -m - 1; begin <= n; ++begin) {
        for (std::int64_t end = begin + 1; end <= n + m; ++end) {
          std::int64_t pairs = 0;
          bool every_row_sees_one = true;
          for (std::int64_t i = 0; i < m; ++i) {
            const std::int64_t seen = std::min(n, end + i) - std::max<std::int64_t>(0, begin + i);
            every_row_sees_one = every_row_sees_one && seen > 0;
            pairs += seen;
          }
          if (!every_row_sees_one) continue;
          EXPECT_EQ(ring::visible_pairs(m, n, {begin, end}), static_cast<double>(pairs))
              << m << " " << n << " " << begin;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
