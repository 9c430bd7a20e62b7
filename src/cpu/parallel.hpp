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

/// Asked now and then by the thread that made a call, between two of its tasks and inside of long ones: true ends the
/// call. Null: nobody asks.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);

/// Asks, if the last time was a while ago.
[[nodiscard]] bool wants_to_end();

/// For tasks that take longer than a user waits: throws Interrupted where the call is to end. On the thread that made
/// the call it asks; on the other threads of a parallel_for it looks whether that one has been told to.
void end_if_interrupted();

/// Calls end_if_interrupted() so seldom that it costs a loop nothing.
class InterruptPoint {
 public:
  /// After a step of the loop that computed this many scores.
  void after(std::int64_t scores) {
    constexpr std::int64_t kOften = 1 << 14;  // scores: about a millisecond
    constexpr std::int64_t kStep = 16;        // of a step with no score
    done_ += std::max<std::int64_t>(scores, 0) + kStep;
    if (done_ < kOften) return;
    done_ = 0;
    end_if_interrupted();
  }

 private:
  std::int64_t done_ = 0;
};

/// Makes the thread one of a loop's while a task of it runs.
class LoopScope {
 public:
  LoopScope(std::atomic<bool>& ended, bool is_caller);
  ~LoopScope();
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;

 private:
  std::atomic<bool>* outer_ended_;
  bool outer_is_caller_;
};

/// Calls task(index) for every index in [0, num_tasks) on `threads` threads that live no longer than the call.
void run_on_fresh_threads(std::int64_t num_tasks, int threads, const std::function<void(std::int64_t)>& task);

/// Calls body(task) for every task in [0, num_tasks), on up to `most_threads` threads, each next task to the first
/// thread that is free. Tasks must not depend on each other. The first exception of a task is thrown again here. Where
/// the caller's interrupt check ends the call, tasks that have not begun are left out, long ones end where they
/// ask, and Interrupted is thrown.
template <class Body>
void parallel_for(std::int64_t num_tasks, int most_threads, Body body) {
  const int threads = static_cast<int>(std::min<std::int64_t>(num_tasks, most_threads));
  std::exception_ptr failure;
  std::mutex failure_mutex;
  std::atomic<bool> ended = false;
  const auto caller = std::this_thread::get_id();
  const auto guarded = [&](std::int64_t task) {
    const bool is_caller = std::this_thread::get_id() == caller;
    if (ended.load(std::memory_order_relaxed)) return;
    if (is_caller && wants_to_end()) {
      ended.store(true, std::memory_order_relaxed);
      return;
    }
    try {
      const LoopScope scope(ended, is_caller);
      body(task);
    } catch (const Interrupted&) {
      ended.store(true, std::memory_order_relaxed);
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
