// A progress bar on stderr for work that takes a person's time; silent where stderr is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace attend::cli {

/// Shows "label [#####.....]  52 %  3 s left" once the work has taken half a second, and wipes it when destroyed.
/// advance() may be called from any thread.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t steps = 1);

  /// Text behind the bar: what is being worked on.
  void note(std::string text);

  /// Wipes the bar until it is next drawn, so that a line can be printed.
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
