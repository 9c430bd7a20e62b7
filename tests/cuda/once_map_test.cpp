// Tests which threads wait for each other when many threads request compiled kernels.
#include "cuda/jit/once_map.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace attend::test {
namespace {

using Map = cuda::OnceMap<int>;

TEST(OnceMap, AThreadNeverWaitsForAnotherKey) {
  Map map;
  std::latch started(1), release(1);
  std::thread slow([&] {
    (void)map.get("slow", [&] {
      started.count_down();
      release.wait();
      return std::make_shared<const int>(1);
    });
  });
  started.wait();  // from now on, "slow" is being computed until the test releases it
  EXPECT_EQ(*map.get("other", [] { return std::make_shared<const int>(2); }), 2);
  EXPECT_EQ(*map.get("other", [] { return std::make_shared<const int>(3); }), 2);
  release.count_down();
  slow.join();
}

TEST(OnceMap, EightThreadsMakeOneValueOnce) {
  Map map;
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int key = 0; key < 50; ++key) {
        const auto value = map.get(std::to_string(key), [&] {
          ++made;
          return std::make_shared<const int>(key);
        });
        EXPECT_EQ(*value, key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 50);
}

TEST(OnceMap, AFailureReachesWhoWaitsAndIsNotKept) {
  Map map;
  std::latch started(1), release(1);
  const auto failing = [&]() -> Map::Pointer {
    started.count_down();
    release.wait();
    throw Error(ErrorCode::kUnsupported, "no");
  };
  std::thread first([&] { EXPECT_THROW((void)map.get("k", failing), Error); });
  started.wait();
  std::thread second([&] {
    try {
      // Either waits for the computation that fails, or starts a new one after it.
      (void)map.get("k", [] { return std::make_shared<const int>(5); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_STREQ(error.what(), "no");
    }
  });
  release.count_down();
  first.join();
  second.join();
  EXPECT_EQ(*map.get("k", [] { return std::make_shared<const int>(5); }), 5);
}

}  // namespace
}  // namespace attend::test
