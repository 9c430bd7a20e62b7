// The one place with threads: a parallel loop over independent tasks.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace attend::cpu {

/// Threads that the next parallel_for of this thread may use: attend's own number, which nobody else's
/// omp_set_num_threads() changes, or 1 inside of a parallel region.
[[nodiscard]] int max_threads();

/// Sets that number for the whole process; 0: back to OMP_NUM_THREADS, else the processors it may run on.
void set_max_threads(int threads);

/// True in a process that was forked from one that had loaded the library. OpenMP's threads did not come along, and a
/// parallel region that needs them may wait for ever.
[[nodiscard]] bool forked();

/// Thrown by a call that its caller's interrupt check ended. Outputs are undefined then, and nothing else is harmed.
struct Interrupted {};

/// Asked now and then by the thread that made a call, between two of its tasks: true ends the call. Null: nobody asks.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);

/// Asks, if the last time was a while ago.
[[nodiscard]] bool wants_to_end();

/// Calls task(index) for every index in [0, num_tasks) on `threads` threads that live no longer than the call.
void run_on_fresh_threads(std::int64_t num_tasks, int threads, const std::function<void(std::int64_t)>& task);

/// Calls body(task) for every task in [0, num_tasks), on up to `most_threads` threads, each next task to the first
/// thread that is free. Tasks must not depend on each other. The first exception of a task is thrown again here. Where
/// the caller's interrupt check ends the call, tasks that have not begun are left out, and Interrupted is thrown.
template <class Body>
void parallel_for(std::int64_t num_tasks, int most_threads, Body body) {
  const int threads = static_cast<int>(std::min<std::int64_t>(num_tasks, most_threads));
  std::exception_ptr failure;
  std::mutex failure_mutex;
  std::atomic<bool> ended = false;
  const auto caller = std::this_thread::get_id();
  const auto guarded = [&](std::int64_t task) {
    if (std::this_thread::get_id() == caller && wants_to_end()) ended.store(true, std::memory_order_relaxed);
    if (ended.load(std::memory_order_relaxed)) return;
    try {
      body(task);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  if (threads <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) guarded(task);
  } else if (forked()) {
    run_on_fresh_threads(num_tasks, threads, guarded);
  } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (std::int64_t task = 0; task < num_tasks; ++task) guarded(task);
  }
  if (failure) std::rethrow_exception(failure);
  if (ended) throw Interrupted();
}

}  // namespace attend::cpu
