#include "process/interrupt.hpp"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "cpu/parallel.hpp"
#include "io/file.hpp"

namespace attend::cli {
namespace {

std::atomic<int> signal_number = 0;

/// State of the results, which the message about an interrupt reports. This object is never destroyed, because the
/// thread that waits for signals uses it until the process ends.
struct Results {
  std::mutex mutex;
  std::string text = "nothing was written";
  bool is_told = false;
};
Results& results() {
  static auto* all = new Results;
  return *all;
}

const char* signal_name(int number) {
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP";
}

/// Prints the message about the interrupt. Only the first call prints it.
void report() {
  const int number = signal_number.load(std::memory_order_relaxed);
  Results& all = results();
  const std::lock_guard lock(all.mutex);
  if (std::exchange(all.is_told, true)) return;
  const std::string line = std::string("attend: interrupted by ") + signal_name(number) + ": " + all.text + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

/// Restores the default action of the signal and raises it, which ends the process. A shell then detects that the
/// process was interrupted, and also stops a loop that started the process.
[[noreturn]] void end_by_signal() {
  const int number = signal_number.load(std::memory_order_relaxed);
  ::signal(number, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, number);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(number);
  ::_exit(128 + number);
}

[[noreturn]] void wait_and_end(const sigset_t& signals) {
  constexpr timespec kGrace = {.tv_sec = 1, .tv_nsec = 0};
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  signal_number.store(number, std::memory_order_relaxed);
  sigtimedwait(&signals, nullptr, &kGrace);  // time in which main() can end; a second signal ends the wait
  io::abandon_unfinished_files();            // if files are being committed, waits for it (milliseconds)
  report();
  end_by_signal();
}

}  // namespace

void watch_for_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    const bool is_ignored = sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!is_ignored) sigaddset(&signals, number);
  }
  // Blocks the signals in every thread, because new threads inherit the mask. Only the waiting thread then receives
  // them.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] { wait_and_end(signals); }).detach();
  cpu::set_interrupt_check([] { return signal_number.load(std::memory_order_relaxed) != 0; });
}

void stop_if_interrupted() {
  if (signal_number.load(std::memory_order_relaxed) != 0) throw cpu::Interrupted();
}

void end_interrupted() {
  report();
  std::fflush(nullptr);
  end_by_signal();
}

void set_interrupted_results(std::string text) {
  const std::lock_guard lock(results().mutex);
  results().text = std::move(text);
}

}  // namespace attend::cli
