// Tests ranks that disagree, refuse a call or fail. Every rank must get the same clear error message, and no rank may
// wait forever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>

#include "cpu/parallel.hpp"
#include "ring/ring_run.hpp"
#include "ring/transport/transport.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr int kRanks = 3;

const AttentionCase kProblem = {.batch = 2,
                                .heads_q = 4,
                                .heads_k = 2,
                                .seqlen_q = 31,
                                .seqlen_k = 37,
                                .head_dim = 8,
                                .head_dim_v = 8,
                                .alibi = true,
                                .bias = Broadcast{false, true, true},
                                .dlse = true,
                                .seed = 5};

/// Runs forward and backward after `change` was applied to one rank's tensors or options. Returns the error message
/// that every rank must throw.
std::string line_of_all(const std::function<void(RankTensors&, RingCase&)>& change, int changed_rank,
                        AttentionCase problem = kProblem, std::string_view compute = "auto") {
  const RingCase same = {problem, Sharding::kZigzag, kRanks};
  const Inputs whole = make_inputs(problem);
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  std::vector<RankTensors> tensors;
  std::vector<RingCase> cases(kRanks, same);
  for (int rank = 0; rank < kRanks; ++rank) tensors.push_back(rank_tensors(whole, same, rank));
  const auto at = static_cast<std::size_t>(changed_rank);
  change(tensors[at], cases[at]);
  std::vector<std::vector<std::byte>> before;
  for (const RankTensors& t : tensors) before.push_back(t.out.o.memory());
  const auto thrown = on_threads(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ring_forward_of(ranks[r], tensors[r], cases[r], compute);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(thrown[r], thrown[0]) << "rank " << rank;
    EXPECT_EQ(thrown[r].find('\n'), std::string::npos);
    EXPECT_EQ(tensors[r].out.o.memory(), before[r]) << "rank " << rank << " wrote o";
  }
  const auto backward = on_threads(kRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ring_backward_of(ranks[r], tensors[r], cases[r], compute);
  });
  for (const std::string& text : backward) EXPECT_FALSE(text.empty());
  // The ring must work again after a refused call.
  const Outputs out = run_on_ring(ranks, make_inputs(kProblem), {kProblem, Sharding::kStriped, kRanks});
  EXPECT_TRUE(std::isfinite(out.o.at(0, 0, 0, 0)));
  return thrown[0];
}

TEST(Agreement, NamesWhatARankHasOtherThanRankZero) {
  const auto line = [](const auto& change) { return line_of_all(change, 2); };
  EXPECT_EQ(line([](RankTensors& t, RingCase&) { t.in.options.causal = true; }),
            "causal: true on rank 2, allowed false as on rank 0");
  EXPECT_EQ(line([](RankTensors&, RingCase& c) { c.sharding = Sharding::kStriped; }),
            "sharding: striped on rank 2, allowed zigzag as on rank 0");
  EXPECT_EQ(line([](RankTensors&, RingCase& c) { c.algorithm = RingAlgorithm::kAllGather; }),
            "algorithm: all_gather on rank 2, allowed exchange as on rank 0");
  EXPECT_EQ(line([](RankTensors& t, RingCase&) { t.in.options.scale = 0.25; }),
            "scale: 0.25 on rank 2, allowed 1/sqrt(head_dim) as on rank 0");
  EXPECT_EQ(line([](RankTensors& t, RingCase&) { t.in.bias.reset(); }),
            "bias: none on rank 2, allowed given as on rank 0");
  EXPECT_EQ(
      line([](RankTensors& t, RingCase&) { t.in.q = TensorBuffer(DType::kF16, t.in.q.shape()); }),
      "q: f16 (batch 2, heads 4, head_dim 8) on cpu on rank 2, allowed f32 (batch 2, heads 4, head_dim 8) on cpu as "
      "on rank 0");
  EXPECT_EQ(line([](RankTensors& t, RingCase&) { t.in.slopes->set(0, 3, 0, 0, 0.5); }),
            "alibi_slopes[0, 3]: 0.5 on rank 2, allowed 0.25 as on rank 0");
}

TEST(Agreement, NamesTheSequenceThatARankPacksOtherwise) {
  AttentionCase packed = kProblem;
  packed.bias.reset();
  packed.varlen_q = {12, 24};
  packed.varlen_k = {12, 24};
  EXPECT_EQ(line_of_all([](RankTensors& t, RingCase&) { t.in.cu_k.get()[1] = 18; }, 1, packed),
            "varlen.cu_seqlens_k[1]: 18 on rank 1, allowed 12 as on rank 0");
}

TEST(Agreement, NamesTheSeedThatARankHasOtherwiseInMemory) {
  AttentionCase dropping = kProblem;
  dropping.dropout_p = 0.5;
  const auto change = [](RankTensors& t, RingCase&) {
    ASSERT_NE(t.in.philox_state, nullptr);
    const auto own = std::make_shared<std::array<std::uint64_t, 2>>(std::array<std::uint64_t, 2>{7, 8});
    t.in.philox_state = {own, own->data()};
  };
  EXPECT_THAT(line_of_all(change, 1, dropping),
              testing::MatchesRegex("seed: 7 on rank 1, allowed [0-9]+ as on rank 0"));
}

TEST(Agreement, GivesOneRanksRefusalToAll) {
  EXPECT_EQ(line_of_all(
                [](RankTensors& t, RingCase&) {
                  Shape shape = t.in.q.shape();
                  shape[2] += 1;
                  t.in.q = TensorBuffer(DType::kF32, shape);
                },
                0),
            "o: shape (2, 4, 11, 8), allowed (batch, num_heads_q and seqlen_q of q, head_dim_v of v) = (2, 4, 12, 8) "
            "(rank 0)");
  EXPECT_EQ(line_of_all(
                [](RankTensors& t, RingCase&) {
                  for (TensorBuffer* keys : {&t.in.k, &t.in.v}) {
                    Shape shape = keys->shape();
                    shape[2] += 1;
                    *keys = TensorBuffer(DType::kF32, shape);
                  }
                },
                1),
            "bias: shape (1, 4, 11, 37), dimension 3 must be 38 (rank 0)");
  EXPECT_EQ(line_of_all([](RankTensors& t, RingCase&) { t.in.options.dropout_p = 1.0; }, 1),
            "dropout_p: 1 on rank 1, allowed 0 as on rank 0");
  AttentionCase plain = kProblem;
  plain.bias.reset();
  EXPECT_EQ(line_of_all(
                [](RankTensors& t, RingCase&) {
                  for (TensorBuffer* keys : {&t.in.k, &t.in.v}) {
                    Shape shape = keys->shape();
                    shape[2] += 1;
                    *keys = TensorBuffer(DType::kF32, shape);
                  }
                },
                1, plain),
            "k: seqlen 13, allowed 12: what rank 1 of 3 holds of 38 tokens with zigzag sharding (rank 1)");
}

TEST(Agreement, IsOnOneBackend) {
  EXPECT_EQ(
      line_of_all([](RankTensors& t, RingCase&) { t.in.bias = TensorBuffer(DType::kF64, t.in.bias->shape()); }, 1),
      "compute: reference on rank 1, allowed cpu as on rank 0");
  EXPECT_EQ(line_of_all([](RankTensors&, RingCase&) {}, 0, kProblem, "two\nlines\t"),
            "compute: 'two lines ', allowed auto, cpu, reference, cpu_naive (rank 0)");
}

TEST(Agreement, RefusesOtherBackends) {
  EXPECT_EQ(line_of_all([](RankTensors&, RingCase&) {}, 0, kProblem, "cpu_naive"),
            "compute: 'cpu_naive', allowed auto, cpu, reference with ring_forward (rank 0)");
}

/// Makes the same invalid call on all ranks. Returns the error message that every rank must throw.
std::string line_of(const std::function<void(const RingContext&, RankTensors&)>& call) {
  const RingCase c = {kProblem, Sharding::kContiguous, kRanks};
  const Inputs whole = make_inputs(kProblem);
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  const auto thrown = on_threads(kRanks, [&](int rank) {
    RankTensors t = rank_tensors(whole, c, rank);
    call(ranks[static_cast<std::size_t>(rank)], t);
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, thrown[0]);
  return thrown[0];
}

TEST(Refusals, AreOneLine) {
  EXPECT_EQ(line_of([](const RingContext& context, RankTensors& t) {
              Tensor q = t.in.q.view();
              q.device = {DeviceType::kCUDA, 1};
              ring_forward(context, q, t.in.k.view(), t.in.v.view(), t.out.o.view(), nullptr);
            }),
            "k: on cpu 0, allowed the device of q, cuda 1 (rank 0)");
  EXPECT_EQ(line_of([](const RingContext& context, RankTensors& t) {
              ring_backward(context, t.in.dout.view(), t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(),
                            t.out.lse.view(), t.out.dq.view(), t.out.dk.view(), t.out.dv.view(), t.in.params("auto"),
                            Sharding::kContiguous, nullptr, {.dbias = t.in.bias->view()});
            }),
            "dbias: given, allowed none with ring_backward (rank 0)");
  AttentionCase with_sinks = kProblem;
  with_sinks.sinks = true;
  const TensorBuffer sinks = *make_inputs(with_sinks).sinks;
  const RingCase c = {kProblem, Sharding::kContiguous, kRanks};
  EXPECT_EQ(line_of([&](const RingContext& context, RankTensors& t) {
              t.in.sinks = sinks;
              ring_forward_of(context, t, c, "auto");
            }),
            "sinks: given, allowed none with ring_forward (rank 0)");
  EXPECT_EQ(line_of([&](const RingContext& context, RankTensors& t) {
              t.in.sinks = sinks;
              ring_backward_of(context, t, c, "auto");
            }),
            "sinks: given, allowed none with ring_backward (rank 0)");
  EXPECT_EQ(line_of([&](const RingContext& context, RankTensors& t) {
              ring_backward(context, t.in.dout.view(), t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(),
                            t.out.lse.view(), t.out.dq.view(), t.out.dk.view(), t.out.dv.view(), t.in.params("auto"),
                            Sharding::kContiguous, nullptr, {.dsinks = sinks.view()});
            }),
            "dsinks: given without params.sinks, allowed with it only (rank 0)");
  try {
    (void)make_thread_ring(0);
    FAIL() << "a ring of no rank";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "num_ranks: 0, allowed >= 1");
  }
}

// One rank is interrupted during a call. The interrupt check of this test returns true only in that rank's thread.
TEST(Failure, OfOneRankEndsTheOthersCalls) {
  static std::atomic<bool> interrupt = false;
  static thread_local bool is_rank_one = false;
  const RingCase c = {kProblem, Sharding::kZigzag, kRanks};
  const Inputs whole = make_inputs(kProblem);
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  interrupt = true;
  cpu::set_interrupt_check([] { return is_rank_one && interrupt.load(); });
  const auto call = [&] {
    return on_threads(kRanks, [&](int rank) {
      is_rank_one = rank == 1;
      const RankTensors t = rank_tensors(whole, c, rank);
      try {
        for (int repeat = 0; repeat < 100000; ++repeat) {
          ring_forward_of(ranks[static_cast<std::size_t>(rank)], t, c, "auto");
        }
      } catch (const cpu::Interrupted&) {
        throw std::runtime_error("interrupted");
      }
    });
  };
  const auto thrown = call();
  interrupt = false;
  const auto later = call();
  cpu::set_interrupt_check(nullptr);
  EXPECT_EQ(thrown[1], "interrupted");
  for (const std::string& text : {thrown[0], thrown[2], later[0], later[1], later[2]}) {
    EXPECT_EQ(text, "ring: rank 1 failed: interrupted");
  }
}

// If one rank never calls, the ranks cannot agree on one error. Each other rank then reports a separate error.
TEST(Failure, OfARankThatNeverCallsIsTold) {
  const RingCase c = {kProblem, Sharding::kZigzag, kRanks};
  const std::vector<RingContext> ranks = make_thread_ring(kRanks, {.timeout = std::chrono::milliseconds(200)});
  const std::vector<RankTensors> tensors = cut(make_inputs(kProblem), c);
  const auto thrown = on_threads(kRanks - 1, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    ring_forward_of(ranks[at], tensors[at], c, "auto");
  });
  EXPECT_EQ(thrown[0], "ring: rank 0 has waited 200 ms for rank 2");
  EXPECT_EQ(thrown[1], "ring: rank 1 has waited 200 ms for rank 2");
}

TEST(ThreadRing, RefusesAMessageOfAnotherSize) {
  const std::vector<RingContext> ranks = make_thread_ring(2);
  const std::byte sent[3] = {};
  std::byte received[4] = {};
  const auto send = ranks[0].transport().send(1, ring::Channel::kKeysValues, sent);
  const auto receive = ranks[1].transport().receive(0, ring::Channel::kKeysValues, received);
  try {
    receive->wait();
    FAIL() << "3 bytes taken for 4";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "ring: 3 bytes from rank 0, expected 4");
  }
}

}  // namespace
}  // namespace attend::test
