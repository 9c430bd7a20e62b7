#include "workload/timing.hpp"

#include <algorithm>
#include <chrono>

#include "process/interrupt.hpp"

namespace attend::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Timing summary(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {.median_ms = (samples[(n - 1) / 2] + samples[n / 2]) / 2,
          .fastest_ms = samples.front(),
          .quartile_ms = {samples[(n - 1) / 4], samples[n - 1 - (n - 1) / 4]},
          .runs = static_cast<std::int64_t>(n)};
}

}  // namespace

std::vector<Timing> time_in_turns(const std::vector<Sampler>& samplers, std::int64_t repeat, double max_seconds) {
  constexpr double kWarmUpMs = 500;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::vector<double>> samples(samplers.size());
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    const double first = samplers[i]();
    if (first >= kWarmUpMs) samples[i].push_back(first);
  }
  const auto wanting = [&](const std::vector<double>& s) { return static_cast<std::int64_t>(s.size()) < repeat; };
  const double limit = max_seconds * static_cast<double>(samplers.size());
  while (std::any_of(samples.begin(), samples.end(), wanting)) {
    const bool late = seconds_since(begin) >= limit;
    if (late && std::none_of(samples.begin(), samples.end(), [](const auto& s) { return s.empty(); })) break;
    for (std::size_t i = 0; i < samplers.size(); ++i) {
      if (!(late ? samples[i].empty() : wanting(samples[i]))) continue;
      stop_if_interrupted();
      samples[i].push_back(samplers[i]());
    }
  }
  std::vector<Timing> timings;
  for (std::vector<double>& s : samples) timings.push_back(summary(std::move(s)));
  return timings;
}

Sampler wall_clock(std::function<void()> call) {
  return [call = std::move(call)] {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return 1000 * seconds_since(begin);
  };
}

}  // namespace attend::cli
