// Tests a ring whose messages are sent and received by functions of the caller. Here these functions use mailboxes
// between threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "ring/ring_run.hpp"

namespace attend::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Stores messages by sender, receiver and channel, in the order in which they were sent.
class Mailboxes {
 public:
  explicit Mailboxes(int num_ranks) : num_ranks_(num_ranks) {}

  [[nodiscard]] RingCallbacks of(int rank) {
    RingCallbacks callbacks;
    callbacks.send = [this, rank](int to, int channel, std::span<const std::byte> bytes) {
      const std::lock_guard lock(mutex_);
      boxes_[{rank, to, channel}].emplace_back(bytes.begin(), bytes.end());
      changed_.notify_all();
      return [] {};
    };
    callbacks.receive = [this, rank](int from, int channel, std::span<std::byte> bytes) {
      return [this, rank, from, channel, bytes] { take({from, rank, channel}, bytes); };
    };
    callbacks.fail = [this](const std::string& why) {
      const std::lock_guard lock(mutex_);
      ++num_failures_;
      if (failure_.empty()) failure_ = why;
      changed_.notify_all();
    };
    return callbacks;
  }

  [[nodiscard]] std::vector<RingContext> ring() {
    std::vector<RingContext> ranks;
    for (int rank = 0; rank < num_ranks_; ++rank) ranks.push_back(make_callback_ring(rank, num_ranks_, of(rank)));
    return ranks;
  }

  [[nodiscard]] bool are_empty() const {
    return std::ranges::all_of(boxes_, [](const auto& box) { return box.second.empty(); });
  }
  [[nodiscard]] int num_failures() const { return num_failures_; }

 private:
  using Key = std::tuple<int, int, int>;

  void take(const Key& key, std::span<std::byte> to) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !boxes_[key].empty() || !failure_.empty(); });
    if (boxes_[key].empty()) throw std::runtime_error("told: " + failure_);
    ASSERT_EQ(boxes_[key].front().size(), to.size());
    std::memcpy(to.data(), boxes_[key].front().data(), to.size());
    boxes_[key].pop_front();
  }

  int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::deque<std::vector<std::byte>>> boxes_;
  std::string failure_;
  int num_failures_ = 0;
};

const AttentionCase kProblem = {.batch = 2,
                                .heads_q = 4,
                                .heads_k = 2,
                                .seqlen_q = 41,
                                .seqlen_k = 37,
                                .head_dim = 16,
                                .head_dim_v = 8,
                                .causal = true,
                                .dropout_p = 0.2,
                                .seed = 11};

void expect_same(const char* name, const TensorBuffer& a, const TensorBuffer& b) {
  const Shape& n = a.shape();
  ASSERT_EQ(n, b.shape());
  for (std::int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i) {
    const std::int64_t row = i / n[3], head = row / n[2], batch = head / n[1];
    const double x = a.at(batch, head % n[1], row % n[2], i % n[3]);
    ASSERT_EQ(x, b.at(batch, head % n[1], row % n[2], i % n[3])) << name << " element " << i;
  }
}

void expect_same(const Outputs& a, const Outputs& b) {
  expect_same("o", a.o, b.o);
  expect_same("lse", a.lse, b.lse);
  expect_same("dq", a.dq, b.dq);
  expect_same("dk", a.dk, b.dk);
  expect_same("dv", a.dv, b.dv);
}

TEST(CallbackRing, GivesTheBitsOfARingOfThreads) {
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kZigzag, Sharding::kStriped}) {
    const RingCase c = {kProblem, sharding, 3};
    const Inputs whole = make_inputs(kProblem);
    Mailboxes mailboxes(3);
    expect_same(run_on_ring(mailboxes.ring(), whole, c), run_on_ring(whole, c));
    EXPECT_TRUE(mailboxes.are_empty());
  }
}

TEST(CallbackRing, HasRanksWithoutRows) {
  AttentionCase problem = kProblem;
  problem.seqlen_q = problem.seqlen_k = 2;
  const RingCase c = {problem, Sharding::kZigzag, 4};
  const Inputs whole = make_inputs(problem);
  Mailboxes mailboxes(4);
  expect_same(run_on_ring(mailboxes.ring(), whole, c), run_on_ring(whole, c));
}

TEST(CallbackRing, RanksThatDisagreeGiveTheSameLineAndGoOn) {
  const Inputs whole = make_inputs(kProblem);
  Mailboxes mailboxes(3);
  const std::vector<RingContext> ranks = mailboxes.ring();
  std::vector<RingCase> cases(3, {kProblem, Sharding::kZigzag, 3});
  const std::vector<RankTensors> tensors = cut(whole, cases[0]);
  cases[2].sharding = Sharding::kStriped;
  const auto thrown = on_threads(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ring_forward_of(ranks[r], tensors[r], cases[r], "auto");
  });
  for (const std::string& text : thrown) {
    EXPECT_EQ(text, "sharding: striped on rank 2, allowed zigzag as on rank 0");
  }
  EXPECT_EQ(mailboxes.num_failures(), 0);
  expect_same(run_on_ring(ranks, whole, cases[0]), run_on_ring(whole, cases[0]));
}

TEST(CallbackRing, ARankThatFailsEndsTheOthersAndEveryLaterCall) {
  const Inputs whole = make_inputs(kProblem);
  const RingCase c = {kProblem, Sharding::kZigzag, 3};
  const std::vector<RankTensors> tensors = cut(whole, c);
  Mailboxes mailboxes(3);
  std::vector<RingContext> ranks = mailboxes.ring();
  RingCallbacks broken = mailboxes.of(1);
  broken.send = [send = broken.send](int to, int channel, std::span<const std::byte> bytes) {
    if (channel != 0) throw std::runtime_error("the cable is out");
    return send(to, channel, bytes);
  };
  ranks[1] = make_callback_ring(1, 3, broken);
  const auto call = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      ring_forward_of(ranks[r], tensors[r], c, "auto");
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kInternal, error.what());
    }
  };
  const auto thrown = on_threads(3, call);
  EXPECT_EQ(thrown[1], "the cable is out");
  EXPECT_THAT(thrown[2], HasSubstr("the cable is out"));  // rank 0 may already have received all data that it needs
  const auto again = on_threads(3, [&](int rank) {
    if (rank != 0) call(rank);
  });
  for (const int rank : {1, 2}) {
    EXPECT_THAT(again[static_cast<std::size_t>(rank)], StartsWith("ring: ended by an earlier call that failed: "));
  }
  EXPECT_GE(mailboxes.num_failures(), 2);
}

TEST(CallbackRing, RefusesWhatMakesNoSense) {
  Mailboxes mailboxes(2);
  const auto refusal = [](int rank, int size, RingCallbacks callbacks) -> std::string {
    try {
      (void)make_callback_ring(rank, size, std::move(callbacks));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(0, 0, mailboxes.of(0)), "size: 0, allowed >= 1");
  EXPECT_EQ(refusal(2, 2, mailboxes.of(0)), "rank: 2, allowed 0 to 1");
  EXPECT_EQ(refusal(0, 2, {}), "callbacks.send: none, allowed a function");
  RingCallbacks deaf = mailboxes.of(0);
  deaf.receive = nullptr;
  EXPECT_EQ(refusal(0, 2, deaf), "callbacks.receive: none, allowed a function");
}

}  // namespace
}  // namespace attend::test
