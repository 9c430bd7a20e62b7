// Waiting without a time limit, compatible with old systems.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace attend::core {

/// Does the same as changed.wait(lock, is_done), in waits of an hour. In GCC 12 the function without a limit has a new
/// symbol (GLIBCXX_3.4.30). With it, the wheel would not load on systems older than manylinux_2_35.
template <class IsDone>
void wait_until_done(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsDone is_done) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_done)) {
  }
}

}  // namespace attend::core
