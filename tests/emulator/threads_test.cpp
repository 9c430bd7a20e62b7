// Tests that barriers order the threads of an emulated block, and that a missing barrier is detected.
#include <gtest/gtest.h>

#include "emulator/threads.hpp"

namespace attend::test {
namespace {

constexpr int kThreads = 128;
int written[kThreads];
int copied[kThreads];
int mistakes = 0;

int own() {
  return static_cast<int>(emulated::block->thread().index.x);
}

void barrier() {
  emulated::block_barrier(0, kThreads);
}

/// Runs the kernel with `seeds` different seeds. Returns how often a thread did not see another thread's write.
int mistakes_of(void (*kernel)(), unsigned seeds = 20) {
  mistakes = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    for (int t = 0; t < kThreads; ++t) written[t] = copied[t] = -1;
    emulated::Block(kThreads, {}, seed).run(kernel);
  }
  return mistakes;
}

void read_of(int other) {
  if (written[other] != other) ++mistakes;
}

TEST(EmulatedThreads, ABarrierShowsWhatOthersWrote) {
  const auto kernel = [] {
    written[own()] = own();
    barrier();
    read_of(kThreads - 1 - own());
  };
  EXPECT_EQ(mistakes_of(kernel), 0);
}

TEST(EmulatedThreads, WithoutTheBarrierSomeThreadReadsTooEarly) {
  const auto kernel = [] {
    written[own()] = own();
    read_of(kThreads - 1 - own());
  };
  EXPECT_GT(mistakes_of(kernel), 0);
}

TEST(EmulatedThreads, AWarpsBarrierIsNoneForTheBlock) {
  const auto in_warp = [] {
    written[own()] = own();
    emulated::warp_barrier();
    read_of(own() ^ 31);
  };
  EXPECT_EQ(mistakes_of(in_warp), 0);
  const auto between_warps = [] {
    written[own()] = own();
    emulated::warp_barrier();
    read_of(kThreads - 1 - own());
  };
  EXPECT_GT(mistakes_of(between_warps), 0);
}

TEST(EmulatedThreads, AnExchangeGivesTheWordsOfEveryLane) {
  const auto kernel = [] {
    for (int round = 0; round < 3; ++round) {
      const auto* all = emulated::exchange(own() + round);
      const int lane = emulated::block->lane() ^ 5;
      if (emulated::words_of<int>(all, lane) != (own() ^ 5) + round) ++mistakes;
    }
  };
  EXPECT_EQ(mistakes_of(kernel), 0);
}

void start_copy(int group) {
  static const int numbers[2] = {1, 2};
  auto& copies = emulated::block->thread().copies;
  copies.push_back({emulated::PendingCopy::kCopy, &copied[own()], &numbers[group], sizeof(int), sizeof(int)});
  copies.push_back({emulated::PendingCopy::kGroupEnd, nullptr, nullptr, 0, 0});
}

TEST(EmulatedThreads, CopiesLandWhenTheyAreWaitedForAndMayLandBefore) {
  const auto waits = [] {
    start_copy(0), start_copy(1);
    emulated::Block::land(emulated::block->thread(), 0);
    if (copied[own()] != 2) ++mistakes;
  };
  EXPECT_EQ(mistakes_of(waits), 0);
  const auto waits_for_the_first = [] {
    start_copy(0), start_copy(1);
    barrier();
    emulated::Block::land(emulated::block->thread(), 1);
    if (copied[own()] != 2) ++mistakes;
  };
  EXPECT_GT(mistakes_of(waits_for_the_first), 0);
  EXPECT_LT(mistakes_of(waits_for_the_first), 20 * kThreads);
}

TEST(EmulatedThreads, ABarrierThatNotAllReachEndsTheProgram) {
  const auto kernel = [] {
    if (own() >= 32) barrier();
  };
  EXPECT_DEATH(mistakes_of(kernel, 1), "every thread waits");
}

}  // namespace
}  // namespace attend::test
