// Measures the time of calls.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace attend::cli {

struct Timing {
  double median_ms = 0;
  double fastest_ms = 0;
  /// The lower and the upper quartile of the samples.
  double quartile_ms[2] = {0, 0};
  std::int64_t runs = 0;  ///< number of samples
  double sm_mhz = 0;      ///< clock of the GPU just after the last sample; 0 on a CPU
};

/// Function that takes one sample. It makes one or more calls of the timed work, and returns the time of one call in
/// milliseconds.
using Sampler = std::function<double()>;

/// Times several computations in alternation, so that changes of the machine's speed affect all of them equally. The
/// function runs up to `repeat` rounds, and each round takes one sample of each computation. After max_seconds *
/// samplers.size() seconds no further round begins, but each computation has at least one sample. The first call of a
/// sampler warms up caches, threads and clocks. Its sample is discarded if it is shorter than half a second.
[[nodiscard]] std::vector<Timing> time_in_turns(const std::vector<Sampler>& samplers, std::int64_t repeat,
                                                double max_seconds);

/// Returns a sampler that makes one call and measures its wall-clock time.
[[nodiscard]] Sampler wall_clock(std::function<void()> call);

}  // namespace attend::cli
