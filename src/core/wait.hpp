// Waiting without a time limit, in a way that a wheel may use.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace attend::core {

/// What changed.wait(lock, is_done) does, as waits of an hour. GCC 12 gave the function without a limit a new symbol
/// (GLIBCXX_3.4.30): one call of it, and the wheel loads on no system older than manylinux_2_35's.
template <class IsDone>
void wait_until_done(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsDone is_done) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_done)) {
  }
}

}  // namespace attend::core
