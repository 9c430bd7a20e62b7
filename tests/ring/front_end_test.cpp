// Tests the information that ranks exchange in addition to their arguments: calls that a front end has refused, call
// numbers, and seeds that rank 0 has drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/parallel.hpp"
#include "ring/ring_run.hpp"
#include "ring/transport/agreement.hpp"
#include "ring/transport/transport.hpp"

namespace attend::test {
namespace {

constexpr int kRanks = 3;

const RingCase kCase = {{.heads_q = 2,
                         .heads_k = 1,
                         .seqlen_q = 23,
                         .seqlen_k = 29,
                         .head_dim = 8,
                         .head_dim_v = 8,
                         .dropout_p = 0.4,
                         .seed = 6},
                        Sharding::kZigzag,
                        kRanks};

/// On every rank, runs `before(rank)` and then forward. If `before` throws, the rank makes no call.
std::vector<std::string> forward_after(const std::vector<RingContext>& ranks, const std::vector<RankTensors>& tensors,
                                       const std::function<void(int)>& before) {
  return on_threads(kRanks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    before(rank);
    ring_forward_of(ranks[at], tensors[at], kCase, "auto");
  });
}

TEST(FrontEnd, ItsRefusalOnOneRankIsThrownToAll) {
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  const std::vector<RankTensors> tensors = cut(make_inputs(kCase.problem), kCase);
  const auto thrown = forward_after(ranks, tensors, [&](int rank) {
    if (rank == 2) ring::refuse(ranks[2].transport(), Error(ErrorCode::kUnsupported, "window: 3 values\nin vain"));
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "window: 3 values in vain (rank 2)");
  // The refused call was counted on all ranks, so the next call works.
  for (const std::string& text : forward_after(ranks, tensors, [](int) {})) EXPECT_EQ(text, "");
}

TEST(FrontEnd, ACallThatOneRankLeftOutIsFoundByItsNumber) {
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  const std::vector<RankTensors> tensors = cut(make_inputs(kCase.problem), kCase);
  for (const std::string& text : forward_after(ranks, tensors, [](int) {})) EXPECT_EQ(text, "");
  (void)ranks[1].transport().next_call();
  const auto numbers = [](int mine, int others) {
    return "call number: " + std::to_string(mine) + " on rank 1, allowed " + std::to_string(others) +
           " as on rank 0: one of these ranks has skipped a call of the ring";
  };
  for (const std::string& text : forward_after(ranks, tensors, [](int) {})) EXPECT_EQ(text, numbers(3, 2));
  // From now on the call numbers of the ranks never match again, even if a rank refuses a call.
  const auto refusing = forward_after(ranks, tensors, [&](int rank) {
    if (rank == 0) ring::refuse(ranks[0].transport(), Error(ErrorCode::kInternal, "no"));
  });
  for (const std::string& text : refusing) EXPECT_EQ(text, numbers(4, 3));
}

TEST(FrontEnd, AnInterruptWhileRanksAgreeIsTold) {
  std::string told;
  RingCallbacks callbacks;
  callbacks.send = [](int, int, std::span<const std::byte>) { return [] {}; };
  callbacks.receive = [](int, int, std::span<std::byte>) { return [] {}; };
  callbacks.all_gather = [](std::span<const std::byte>, std::span<std::byte>) { throw cpu::Interrupted(); };
  callbacks.fail = [&told](const std::string& why) { told = why; };
  const RingContext rank = make_callback_ring(0, kRanks, callbacks);
  const RankTensors tensors = rank_tensors(make_inputs(kCase.problem), kCase, 0);
  EXPECT_THROW(ring_forward_of(rank, tensors, kCase, "auto"), cpu::Interrupted);
  EXPECT_EQ(told, "interrupted");
  try {
    ring_forward_of(rank, tensors, kCase, "auto");
    FAIL() << "the ring goes on";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "ring: ended by an earlier call that failed: interrupted");
  }
}

/// Runs forward and backward. Each rank passes the seed at its index in `seeds`.
Outputs with_seeds(const std::vector<std::uint64_t>& seeds, bool seed_of_rank_0) {
  const Inputs whole = make_inputs(kCase.problem);
  const std::vector<RingContext> ranks = make_thread_ring(kRanks);
  const std::vector<RankTensors> tensors = cut(whole, kCase);
  RingParams ring_params = kCase.ring_params();
  ring_params.seed_of_rank_0 = seed_of_rank_0;
  const auto thrown = on_threads(kRanks, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const RankTensors& t = tensors[at];
    Params params = t.in.params("auto");
    params.seed = seeds[at];
    const Tensor lse = t.out.lse.view();
    ring_forward(ranks[at], t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(), &lse, params, ring_params);
    ring_backward(ranks[at], t.in.dout.view(), t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(), lse,
                  t.out.dq.view(), t.out.dk.view(), t.out.dv.view(), params, ring_params);
  });
  for (const std::string& text : thrown) EXPECT_EQ(text, "");
  return put_together(tensors, whole, kCase);
}

bool is_same(const TensorBuffer& a, const TensorBuffer& b) {
  const Shape& n = a.shape();
  for (std::int64_t head = 0; head < n[1]; ++head) {
    for (std::int64_t row = 0; row < n[2]; ++row) {
      for (std::int64_t c = 0; c < n[3]; ++c) {
        if (a.at(0, head, row, c) != b.at(0, head, row, c)) return false;
      }
    }
  }
  return true;
}

TEST(FrontEnd, ASeedOfRankZeroIsThatOfAllRanks) {
  const Outputs found = with_seeds({7, 8, ~std::uint64_t{0}}, true);
  const Outputs want = with_seeds({7, 7, 7}, false);
  EXPECT_TRUE(is_same(found.o, want.o));
  EXPECT_TRUE(is_same(found.dq, want.dq));
  EXPECT_TRUE(is_same(found.dk, want.dk));
  EXPECT_TRUE(is_same(found.dv, want.dv));
  EXPECT_FALSE(is_same(found.o, with_seeds({8, 8, 8}, false).o)) << "nothing depends on the seed";
}

TEST(FrontEnd, ASeedOfRankZeroIsANumber) {
  const std::vector<RingContext> ranks = make_thread_ring(1);
  RankTensors t = rank_tensors(make_inputs(kCase.problem), {kCase.problem, Sharding::kZigzag, 1}, 0);
  const std::uint64_t state[2] = {1, 2};
  Params params = t.in.params("auto");
  params.philox_state = state;
  RingParams ring_params = Sharding::kZigzag;
  ring_params.seed_of_rank_0 = true;
  try {
    ring_forward(ranks[0], t.in.q.view(), t.in.k.view(), t.in.v.view(), t.out.o.view(), nullptr, params, ring_params);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "philox_state: given with seed_of_rank_0, allowed none (rank 0)");
  }
}

}  // namespace
}  // namespace attend::test
