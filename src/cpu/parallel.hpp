// Parallel loops over independent tasks. All threads of the library start here.
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

/// Returns the number of threads that the next parallel_for of this thread may use. Returns 1 inside a parallel region.
/// Calls of omp_set_num_threads() by other libraries do not change the number.
[[nodiscard]] int max_threads();

/// Sets the number of threads for the process. 0 restores the default, which is OMP_NUM_THREADS. If OMP_NUM_THREADS is
/// unset, the default is the number of processors that the process may use.
void set_max_threads(int threads);

/// Returns true in a child process that was forked after its parent had loaded the library. The fork does not copy
/// OpenMP's threads, so a parallel region in the child may wait for them forever.
[[nodiscard]] bool forked();

/// Thrown if the interrupt check ends a call. The outputs are then undefined, but all other state stays valid.
struct Interrupted {};

/// Interrupt check. The thread that called the library runs the check between tasks and inside long tasks. If the check
/// returns true, the call ends. Null means no check.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);

/// Runs the interrupt check, unless the last check was a short time ago, and returns its result.
[[nodiscard]] bool wants_to_end();

/// Throws Interrupted if the call must end. A task that takes long must call this function regularly. On the thread
/// that called the library, the function runs the interrupt check. On the other threads of a parallel_for, it reads the
/// result of that check.
void end_if_interrupted();

/// Calls end_if_interrupted() rarely enough that a loop does not slow down.
class InterruptPoint {
 public:
  /// Must be called after each step of the loop, with the number of scores that the step computed.
  void after(std::int64_t scores) {
    constexpr std::int64_t kOften = 1 << 14;  // number of scores between two checks; they take about a millisecond
    // Cost of a step without scores, as the number of scores that take the same time.
    constexpr std::int64_t kStep = 16;
    done_ += std::max<std::int64_t>(scores, 0) + kStep;
    if (done_ < kOften) return;
    done_ = 0;
    end_if_interrupted();
  }

 private:
  std::int64_t done_ = 0;
};

/// Marks the current thread as a thread of a parallel loop. The mark lasts while the object exists.
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

/// Calls task(index) for every index in [0, num_tasks). It starts `threads` threads for this call, and ends them before
/// it returns.
void run_on_fresh_threads(std::int64_t num_tasks, int threads, const std::function<void(std::int64_t)>& task);

/// Calls body(task) for every task in [0, num_tasks), on up to `most_threads` threads. The first free thread runs the
/// next task. Tasks must not depend on each other. If a task throws, the calling thread rethrows the first exception.
/// If the interrupt check ends the call, tasks that have not begun are skipped, long tasks end at their next check, and
/// the call throws Interrupted.
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
