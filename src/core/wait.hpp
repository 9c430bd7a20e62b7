// Waits without a time limit in a way that runs on old systems.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace attend::core {

/// Calls changed.wait_for() with a limit of an hour until is_done() is true, as changed.wait(lock, is_done) would. In
/// GCC 12 wait() without a limit has a new symbol (GLIBCXX_3.4.30), and a wheel that uses it does not load on systems
/// older than manylinux_2_35.
template <class IsDone>
void wait_until_done(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsDone is_done) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_done)) {
  }
}

}  // namespace attend::core
