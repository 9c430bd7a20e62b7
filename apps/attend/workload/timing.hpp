// Measures how long calls take.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::cli {

struct Timing {
  double median_ms = 0;
  double fastest_ms = 0;
  double quartile_ms[2] = {0, 0};  ///< a quarter of the samples is below the first, a quarter above the second
  std::int64_t runs = 0;           ///< number of samples
  double sm_mhz = 0;               ///< clock of the GPU just after the last sample; 0 on a CPU
};

/// Does the timed work one or more times, as often as the measurement needs, and returns the milliseconds of one call.
using Sampler = std::function<double()>;

/// Times several computations in alternation, so that changes of the machine affect all of them alike: `repeat` rounds
/// of one sample each. Stops earlier, but not before one round, once they have taken `max_seconds` for each sampler. A
/// first sample shorter than half a second only warms up the caches, the threads and the clocks, and is not counted.
[[nodiscard]] std::vector<Timing> time_in_turns(const std::vector<Sampler>& samplers, std::int64_t repeat,
                                                double max_seconds);

/// Returns a sampler that makes one call and reads the wall clock.
[[nodiscard]] Sampler wall_clock(std::function<void()> call);

}  // namespace attend::cli
