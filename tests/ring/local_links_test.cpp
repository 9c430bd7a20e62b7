// Tests the links that connect ranks of one machine. The ranks are threads of this process, or one is a separate
// process. The driver is a software GPU (tests/cuda/fake_gpu.cpp), whose copies finish as soon as they are submitted to
// a stream.
#include "ring/transport/local_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "attend/error.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/driver.hpp"
#include "ring/ring_run.hpp"

namespace attend::test {
namespace {

using ring::DeviceMessage;
using ring::DeviceState;
using ring::LocalLinks;

const bool kHasFake = ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_GPU, 1) == 0;

/// Provides the all_gather between threads that connect() needs.
class Table {
 public:
  explicit Table(int num_ranks) : num_ranks_(num_ranks), barrier_(num_ranks) {}

  LocalLinks::Gather gather_of(int rank) {
    return [this, rank](std::span<const std::byte> mine, std::span<std::byte> all) {
      if (rank == 0) bytes_.resize(mine.size() * static_cast<std::size_t>(num_ranks_));
      barrier_.arrive_and_wait();
      std::memcpy(bytes_.data() + static_cast<std::size_t>(rank) * mine.size(), mine.data(), mine.size());
      barrier_.arrive_and_wait();
      std::memcpy(all.data(), bytes_.data(), all.size());
      barrier_.arrive_and_wait();
    };
  }

 private:
  int num_ranks_;
  std::barrier<> barrier_;
  std::vector<std::byte> bytes_;
};

struct Rank {
  DeviceState state{0};
  std::unique_ptr<LocalLinks> links;

  std::span<std::byte> memory(std::size_t bytes) {
    auto* const data = reinterpret_cast<std::byte*>(state.borrow(bytes, nullptr));
    state.give_back(nullptr);
    return {data, bytes};
  }
};

DeviceMessage message(int peer, std::span<std::byte> memory) {
  return {peer, reinterpret_cast<cuda::DevicePointer>(memory.data()), memory.size()};
}

/// Runs work(number, rank) on one thread per rank. `rank` holds the links to all other ranks.
std::vector<std::string> on_linked_threads(int num_ranks, const std::function<void(int, Rank&)>& work,
                                           std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  Table table(num_ranks);
  return on_threads(num_ranks, [&](int number) {
    Rank rank;
    rank.links = LocalLinks::connect({number, num_ranks, true, timeout, rank.state, table.gather_of(number)});
    if (rank.links == nullptr) throw Error(ErrorCode::kInternal, "no links");
    EXPECT_TRUE(rank.links->reaches_all());
    work(number, rank);
  });
}

TEST(LocalLinks, GatherMessagesOfAnyLength) {
  ASSERT_TRUE(kHasFake);
  const std::vector<std::string> thrown = on_linked_threads(4, [](int number, Rank& rank) {
    for (const std::size_t count : {1UL, 5UL, 30000UL, 3UL, 4096UL}) {
      std::vector<int> mine(count), all(4 * count, -1);
      std::iota(mine.begin(), mine.end(), 1000000 * number);
      rank.links->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<int>(1000000 * (i / count) + i % count)) << count;
      }
    }
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

/// Sends blocks in several rounds. Each rank's block holds a different number, and the memory grows between rounds.
TEST(LocalLinks, PassOnWhatIsInMemoryAtThatTime) {
  const std::vector<std::string> thrown = on_linked_threads(3, [](int number, Rank& rank) {
    for (int round = 0; round < 60; ++round) {
      const std::size_t bytes = 1000 + static_cast<std::size_t>(round) * 50000;
      const std::span<std::byte> memory = rank.memory(2 * bytes);
      const auto out = memory.first(bytes), in = memory.last(bytes);
      std::memset(out.data(), number + 3 * round, bytes);
      std::memset(in.data(), 255, bytes);
      const DeviceMessage sent = message((number + 1) % 3, out), received = message((number + 2) % 3, in);
      rank.links->exchange(std::span(&sent, 1), std::span(&received, 1));
      const auto want = static_cast<std::byte>((number + 2) % 3 + 3 * round);
      for (const std::byte b : in) ASSERT_EQ(b, want) << round;
    }
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

TEST(LocalLinks, AreForNobodyWhereOneRankDoesNotWantThem) {
  Table table(2);
  const std::vector<std::string> thrown = on_threads(2, [&](int number) {
    DeviceState state(0);
    EXPECT_EQ(LocalLinks::connect({number, 2, number == 0, std::chrono::seconds(9), state, table.gather_of(number)}),
              nullptr);
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

TEST(LocalLinks, EndTheWaitForARankThatHasFailed) {
  const std::vector<std::string> thrown = on_linked_threads(2, [](int number, Rank& rank) {
    if (number == 1) return rank.links->fail("out of luck");
    const std::span<std::byte> memory = rank.memory(64);
    const DeviceMessage sent = message(1, memory);
    rank.links->exchange(std::span(&sent, 1), {});
  });
  EXPECT_EQ(thrown[0], "ring: rank 1 failed: out of luck");
}

TEST(LocalLinks, EndTheWaitOfARankThatIsInterrupted) {
  // True only in the thread of the waiting rank, so only this thread is interrupted.
  static thread_local bool is_waiting = false;
  cpu::set_interrupt_check([] { return is_waiting; });
  bool is_interrupted = false;
  const std::vector<std::string> thrown = on_linked_threads(2, [&](int number, Rank& rank) {
    if (number == 1) return;  // this rank never calls
    is_waiting = true;
    const std::byte mine = {};
    std::array<std::byte, 2> all = {};
    try {
      rank.links->all_gather(std::span(&mine, 1), all);
    } catch (const cpu::Interrupted&) {
      is_interrupted = true;
    }
  });
  cpu::set_interrupt_check(nullptr);
  EXPECT_THAT(thrown, testing::Each(""));
  EXPECT_TRUE(is_interrupted);
}

TEST(LocalLinks, DoNotWaitForEver) {
  const std::vector<std::string> thrown = on_linked_threads(
      2,
      [](int number, Rank& rank) {
        int all[2];
        if (number == 0)
          rank.links->all_gather(std::as_bytes(std::span(&number, 1)), std::as_writable_bytes(std::span(all)));
      },
      std::chrono::milliseconds(200));
  EXPECT_THAT(thrown, testing::ElementsAre("ring: rank 0 has waited 200 ms for rank 1", ""));
}

TEST(LocalLinks, RefuseAMessageOfAnotherSize) {
  const std::vector<std::string> thrown = on_linked_threads(
      2,
      [](int number, Rank& rank) {
        const DeviceMessage m = message(1 - number, rank.memory(64).first(number == 0 ? 32 : 64));
        try {
          if (number == 0) return rank.links->exchange(std::span(&m, 1), {});
          rank.links->exchange({}, std::span(&m, 1));
        } catch (const Error& error) {
          rank.links->fail(error.what());
          throw;
        }
      },
      std::chrono::seconds(20));
  EXPECT_THAT(thrown, testing::ElementsAre("ring: rank 1 failed: ring: 32 bytes from rank 0, expected 64",
                                           "ring: 32 bytes from rank 0, expected 64"));
}

/// Once the name of a shared block is removed, no other process can open the block, but its memory still exists.
TEST(SharedBlock, IsTheSameMemoryInTwoProcesses) {
  const std::string name = "/attend-test-" + std::to_string(::getpid());
  ring::SharedBlock made = ring::SharedBlock::make(name, 4096);
  EXPECT_THROW((void)ring::SharedBlock::make(name, 4096), Error);
  const pid_t child = ::fork();
  if (child == 0) {
    const ring::SharedBlock opened = ring::SharedBlock::open(name, 4096);
    opened.memory()[4095] = std::byte{7};
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(made.memory()[4095], std::byte{7});
  EXPECT_EQ(made.memory()[0], std::byte{0});
  made.forget_name();
  EXPECT_THROW((void)ring::SharedBlock::open(name, 4096), Error);
}

}  // namespace
}  // namespace attend::test
