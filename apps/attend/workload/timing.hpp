// Measures how long calls take.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::cli {

struct Timing {
  double median_ms = 0;
  double fastest_ms = 0;
  /// A quarter of the samples is below the first number, and a quarter is above the second.
  double quartile_ms[2] = {0, 0};
  std::int64_t runs = 0;  ///< number of samples
  double sm_mhz = 0;      ///< clock of the GPU just after the last sample; 0 on a CPU
};

/// Runs the timed work once or several times, as the measurement requires. Returns the time of one call in
/// milliseconds.
using Sampler = std::function<double()>;

/// Times several computations in alternation, so that changes of the machine affect all of them equally. It runs
/// `repeat` rounds, and each round takes one sample of each computation. It stops early, but not before one round, if
/// the rounds have taken `max_seconds` per sampler. If the first sample takes less than half a second, it only warms up
/// the caches, the threads and the clocks, and is discarded.
[[nodiscard]] std::vector<Timing> time_in_turns(const std::vector<Sampler>& samplers, std::int64_t repeat,
                                                double max_seconds);

/// Returns a sampler that makes one call and measures its wall-clock time.
[[nodiscard]] Sampler wall_clock(std::function<void()> call);

}  // namespace attend::cli
