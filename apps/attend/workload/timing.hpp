// How long calls take.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::cli {

struct Timing {
  double median_ms = 0;
  double fastest_ms = 0;
  double quartile_ms[2] = {0, 0};  ///< a quarter of the samples is below the first, above the second
  std::int64_t runs = 0;           ///< samples
  double sm_mhz = 0;               ///< clock of the GPU right after the last sample; 0: not a GPU's timing
};

/// Does the work that is timed once, or often enough to be measured, and returns the milliseconds of one call.
using Sampler = std::function<double()>;

/// Times several computations in turns, so that whatever changes on the machine changes for all of them: `repeat`
/// rounds of one sample each. Stops earlier, but not before one round, once they have taken `max_seconds` for each
/// sampler. A first sample shorter than half a second only warms up the caches, the threads and the clocks, and is not
/// counted.
[[nodiscard]] std::vector<Timing> time_in_turns(const std::vector<Sampler>& samplers, std::int64_t repeat,
                                                double max_seconds);

/// A sampler that makes one call and looks at the clock of the wall.
[[nodiscard]] Sampler wall_clock(std::function<void()> call);

}  // namespace attend::cli
