// Tests many processes that share one cache, and processes that are killed at a random time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>

#include "cuda/jit_fixture.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kProcesses = 16;
constexpr int kKillRounds = 24 / ATTEND_TEST_STRIDE;

/// Returns the number of rounds: $ATTEND_TEST_ROUNDS, or 1. In each round, kProcesses processes start with an empty
/// cache.
int cold_rounds() {
  const char* rounds = std::getenv("ATTEND_TEST_ROUNDS");
  return rounds == nullptr ? 1 : std::atoi(rounds);
}

constexpr int kLongestLifeMicroseconds = 120'000;  // jit_helper runs for less time than this, except with sanitizers

class JitProcesses : public NvrtcTest {
 protected:
  struct Child {
    pid_t pid;
    int output;
  };

  [[nodiscard]] Child start(int value) const {
    int pipe[2] = {};
    EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const std::string number = std::to_string(value);
    const std::string kernels = kernels_.string();
    const std::string cache = cache_.string();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(pipe[1], STDOUT_FILENO);
      ::execl(ATTEND_JIT_HELPER, ATTEND_JIT_HELPER, kernels.c_str(), cache.c_str(), number.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    return {pid, pipe[0]};
  }

  static std::string finish(const Child& child) {
    std::string text;
    char piece[4096];
    for (ssize_t got = 0; (got = ::read(child.output, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<std::size_t>(got));
    }
    ::close(child.output);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    return text;
  }
};

TEST_F(JitProcesses, SixteenStartColdOnOneKey) {
  std::set<std::string> digests;
  for (int round = 0; round < cold_rounds(); ++round) {
    fs::remove_all(cache_);
    std::vector<Child> children;
    for (int i = 0; i < kProcesses; ++i) children.push_back(start(1));
    for (const Child& child : children) {
      const std::string text = finish(child);  // is "compiled DIGEST" or "disk DIGEST"
      EXPECT_TRUE(text.starts_with("compiled ") || text.starts_with("disk ")) << text;
      digests.insert(text.substr(text.find(' ') + 1));
    }
    EXPECT_EQ(entries().size(), 1U);
    EXPECT_THAT(finish(start(1)), testing::StartsWith("disk "));
  }
  EXPECT_EQ(digests.size(), 1U);
}

TEST_F(JitProcesses, KilledAtRandomInstants) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < kKillRounds; ++round) {
    const Child victim = start(round);
    ::usleep(static_cast<useconds_t>(random() % kLongestLifeMicroseconds));
    ::kill(victim.pid, SIGKILL);
    finish(victim);
    const std::string text = finish(start(round));
    EXPECT_TRUE(text.starts_with("compiled ") || text.starts_with("disk ")) << text;
    EXPECT_THAT(finish(start(round)), testing::StartsWith("disk "));
  }
}

TEST_F(JitProcesses, WhatKilledProcessesLeftIsTidiedUp) {
  finish(start(1));
  const fs::path folder = entries().at(0).parent_path();
  write_file(folder / ".tmp-1-0-0", "old");
  write_file(folder / ".tmp-2-0-0", "new");
  fs::last_write_time(folder / ".tmp-1-0-0", fs::file_time_type::clock::now() - std::chrono::hours(2));
  finish(start(2));
  EXPECT_FALSE(fs::exists(folder / ".tmp-1-0-0"));
  EXPECT_TRUE(fs::exists(folder / ".tmp-2-0-0"));  // kept, because another process may be writing it
}

}  // namespace
}  // namespace attend::test
