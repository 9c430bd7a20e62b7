// Waits without a time limit in a way that runs on old systems.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace attend::core {

/// Waits until is_done() is true, like changed.wait(lock, is_done). It does this by repeated calls of
/// changed.wait_for() with a limit of an hour. The function exists because GCC 12 gives wait() without a limit a new
/// symbol (GLIBCXX_3.4.30). A wheel that uses this symbol does not load on systems older than manylinux_2_35.
template <class IsDone>
void wait_until_done(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsDone is_done) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_done)) {
  }
}

}  // namespace attend::core
