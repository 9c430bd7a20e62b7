#include "process/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace attend::cli {
namespace {

constexpr std::chrono::milliseconds kPatience{500};  // time before the bar appears
constexpr std::chrono::milliseconds kInterval{100};  // time between two updates
constexpr std::int64_t kWidth = 30;                  // width of the bar in characters

}  // namespace

Progress::Progress(std::string label, std::int64_t total)
    : enabled_(::isatty(STDERR_FILENO) != 0), label_(std::move(label)), total_(total) {}

Progress::~Progress() {
  hide();
}

void Progress::hide() {
  const std::lock_guard lock(mutex_);
  if (visible_) std::fputs("\r\x1b[K", stderr);
  visible_ = false;
}

void Progress::advance(std::int64_t steps) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  done_ += steps;
  const Clock::time_point now = Clock::now();
  if (now - begin_ >= kPatience && now - drawn_ >= kInterval) draw(now);
}

void Progress::note(std::string text) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
  const Clock::time_point now = Clock::now();
  if (now - begin_ >= kPatience) draw(now);
}

void Progress::draw(Clock::time_point now) {
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const std::string left = done_ > 0 ? fmt::format("{:.0f} s left", seconds / share - seconds) : "";
  const std::string text = fmt::format("\r\x1b[K{} [{:.<{}}] {:3.0f} %  {}  {}", label_, std::string(filled, '#'),
                                       kWidth, 100 * share, left, note_);
  std::fputs(text.c_str(), stderr);  // fputs does not throw, unlike fmt::print
  std::fflush(stderr);
  drawn_ = now;
  visible_ = true;
}

}  // namespace attend::cli
