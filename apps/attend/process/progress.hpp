// A progress bar on stderr for long tasks. Prints nothing if stderr is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace attend::cli {

/// Shows "label [#####.....]  52 %  3 s left" if the task takes longer than half a second. The destructor erases the
/// bar. advance() may be called from any thread.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t steps = 1);

  /// Sets the text after the bar, for example the name of the current problem.
  void note(std::string text);

  /// Erases the bar, so that the caller can print a line. The next update draws the bar again.
  void hide();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  const bool enabled_;
  const std::string label_;
  const std::int64_t total_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  std::string note_;
  std::int64_t done_ = 0;
  Clock::time_point drawn_ = begin_;
  bool visible_ = false;
};

}  // namespace attend::cli
