#include "ring/transport/timeline.hpp"

#include <algorithm>
#include <utility>

#include "attend/error.hpp"

namespace attend::ring {

Timeline::Point Timeline::now(cuda::StreamHandle stream) const {
  if (!on_device_) return {Clock::now(), nullptr};
  Point point = {{}, std::make_unique<cuda::Event>(cuda::Event::Timing::kOn)};
  point.event->record(stream);
  return point;
}

std::size_t Timeline::begin(Activity activity, int step, cuda::StreamHandle stream) {
  marks_.push_back({activity, step, now(stream), {}});
  return marks_.size() - 1;
}

void Timeline::end(std::size_t number, cuda::StreamHandle stream) {
  marks_[number].end = now(stream);
  marks_[number].has_ended = true;
}

double Timeline::since_first(const Point& point) const {
  const Point& first = marks_.front().begin;
  if (!on_device_) return std::chrono::duration<double, std::milli>(point.time - first.time).count();
  point.event->synchronize();
  return static_cast<double>(point.event->milliseconds_since(*first.event));
}

std::vector<Span> Timeline::spans() const {
  std::vector<Span> all;
  for (const Marks& m : marks_) {
    if (m.has_ended) all.push_back({m.activity, m.step, since_first(m.begin), since_first(m.end)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.begin_ms < b.begin_ms; });
  return all;
}

void TimedSpan::end() noexcept {
  Timeline* const timeline = std::exchange(timeline_, nullptr);
  if (timeline == nullptr) return;
  try {
    timeline->end(number_, stream_);
  } catch (const Error&) {
    return;  // the call itself fails for the same reason and reports the error
  }
}

}  // namespace attend::ring
