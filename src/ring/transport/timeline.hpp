// Records when a rank computes and when it exchanges, for `attend ring`. Records nothing unless a timeline is set.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver/stream.hpp"

namespace attend::ring {

/// Activity of a rank during a span. kCopy is GPU work other than products: clearing, copying, adding and rounding.
enum class Activity : std::uint8_t { kCompute, kExchange, kCopy };

/// One recorded span. Times are in milliseconds since the timeline's first span began.
struct Span {
  Activity activity;
  int step;
  double begin_ms, end_ms;
};

/// Records spans. On the host it uses the host clock. On a GPU it uses events on the streams that do the work.
class Timeline {
 public:
  /// @param on_device  true if the work runs on a GPU, so that begin() and end() need a stream
  explicit Timeline(bool on_device) : on_device_(on_device) {}

  /// Begins a span and returns its number.
  [[nodiscard]] std::size_t begin(Activity activity, int step, cuda::StreamHandle stream = nullptr);
  void end(std::size_t number, cuda::StreamHandle stream = nullptr);

  /// Returns the completed spans, ordered by their begin. On a GPU, waits for them first.
  [[nodiscard]] std::vector<Span> spans() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Point {
    Clock::time_point time = {};
    std::unique_ptr<cuda::Event> event = {};
  };
  struct Marks {
    Activity activity;
    int step;
    Point begin, end;
    bool has_ended = false;
  };
  [[nodiscard]] Point now(cuda::StreamHandle stream) const;
  [[nodiscard]] double since_first(const Point& point) const;

  bool on_device_;
  std::vector<Marks> marks_;
};

/// Records a span that lasts as long as the object. Does nothing if the timeline is null.
class TimedSpan {
 public:
  TimedSpan(Timeline* timeline, Activity activity, int step, cuda::StreamHandle stream = nullptr)
      : timeline_(timeline), stream_(stream), number_(timeline ? timeline->begin(activity, step, stream) : 0) {}
  ~TimedSpan() { end(); }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

  /// Ends the span early.
  void end() noexcept;

 private:
  Timeline* timeline_;
  cuda::StreamHandle stream_;
  std::size_t number_;
};

}  // namespace attend::ring
