// How long a call takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace attend::cli {

struct Timing {
  double median_ms = 0;
  double fastest_ms = 0;
  std::int64_t runs = 0;
};

/// Times `repeat` calls, at least one, and stops once `max_seconds` are spent. A first call that is shorter than half a
/// second only warms up the caches and the threads, and is not counted.
template <class Call>
[[nodiscard]] Timing time_calls(std::int64_t repeat, double max_seconds, Call call) {
  constexpr double kWarmUpMs = 500;
  const auto timed = [&call] {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<double> times;
  const double first = timed();
  double spent = first;
  if (first >= kWarmUpMs) times.push_back(first);
  while (static_cast<std::int64_t>(times.size()) < repeat && (times.empty() || spent < max_seconds * 1000)) {
    times.push_back(timed());
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  const std::size_t n = times.size();
  return {(times[(n - 1) / 2] + times[n / 2]) / 2, times.front(), static_cast<std::int64_t>(n)};
}

}  // namespace attend::cli
