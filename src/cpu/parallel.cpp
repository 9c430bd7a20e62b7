#include "cpu/parallel.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "core/environment.hpp"

namespace attend::cpu {
namespace {

std::atomic<bool> is_child = false;
// The handler is registered when the library is loaded, so it also detects a fork before the library's first call. Even
// such a fork matters: another library of the process may already have started OpenMP's threads, which the child does
// not have.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { is_child = true; });

/// Returns the first number in OMP_NUM_THREADS. If the variable is unset, returns the number of processors in the
/// affinity mask. Does not call omp_get_max_threads(), because another library in the process may have changed that
/// setting.
int threads_of_environment() {
  const char* text = core::environment("OMP_NUM_THREADS");
  const long wanted = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  const int threads = wanted > 0 ? static_cast<int>(std::min<long>(wanted, 1 << 16)) : omp_get_num_procs();
  return std::min(threads, omp_get_thread_limit());
}

std::atomic<int> told = 0;

std::atomic<InterruptCheck> interrupt_check = nullptr;

/// State of the loop whose task this thread runs. loop_ended is the loop's end flag, or null outside a loop.
/// is_loop_caller is true if this thread started the loop.
thread_local std::atomic<bool>* loop_ended = nullptr;
thread_local bool is_loop_caller = false;

}  // namespace

int max_threads() {
  static const int by_default = threads_of_environment();
  if (omp_in_parallel() != 0) return 1;
  const int number = told.load(std::memory_order_relaxed);
  return number > 0 ? number : by_default;
}

void set_max_threads(int threads) {
  told.store(threads, std::memory_order_relaxed);
}

bool forked() {
  return is_child.load(std::memory_order_relaxed);
}

void set_interrupt_check(InterruptCheck check) {
  interrupt_check.store(check, std::memory_order_relaxed);
}

bool wants_to_end() {
  constexpr std::chrono::milliseconds kPause{50};
  const InterruptCheck check = interrupt_check.load(std::memory_order_relaxed);
  if (check == nullptr) return false;
  thread_local std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
  const auto now = std::chrono::steady_clock::now();
  if (now - last < kPause) return false;
  last = now;
  return check();
}

void end_if_interrupted() {
  const bool is_helper = loop_ended != nullptr && !is_loop_caller;
  const bool ends = is_helper ? loop_ended->load(std::memory_order_relaxed) : wants_to_end();
  if (ends) throw Interrupted();
}

LoopScope::LoopScope(std::atomic<bool>& ended, bool is_caller)
    : outer_ended_(std::exchange(loop_ended, &ended)), outer_is_caller_(std::exchange(is_loop_caller, is_caller)) {}

LoopScope::~LoopScope() {
  loop_ended = outer_ended_;
  is_loop_caller = outer_is_caller_;
}

void run_on_fresh_threads(std::int64_t num_tasks, int threads, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    for (std::int64_t index = next++; index < num_tasks; index = next++) task(index);
  };
  std::vector<std::jthread> helpers;
  try {
    for (int helper = 1; helper < threads; ++helper) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // The system cannot start more threads. The existing threads do the work.
  }
  work();
}

}  // namespace attend::cpu

namespace attend {

int cpu_threads() {
  return cpu::max_threads();
}

void set_cpu_threads(int threads) {
  if (threads < 0) throw Error(ErrorCode::kInvalidArgument, "threads: " + std::to_string(threads) + ", allowed >= 0");
  cpu::set_max_threads(threads);
}

}  // namespace attend
