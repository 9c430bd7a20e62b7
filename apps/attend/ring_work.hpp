// What one rank of `attend ring` does: its rows of a random problem, timed and recorded; and the same work alone.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attend/ring.hpp"
#include "options.hpp"
#include "ring/timeline.hpp"

namespace attend::cli {

/// Passes that are timed. kBoth is a forward and a backward in a row.
[[nodiscard]] std::vector<Mode> ring_passes(Mode mode);

/// Of one pass: samples in milliseconds, and when what was done in one more call, which is not timed.
struct PassTimes {
  std::vector<double> samples;  ///< of the ring, on a GPU of calls in a row
  std::vector<double> alone;    ///< of the rank's share alone
  std::vector<double> single;   ///< on a GPU, of calls by themselves: clocks are those of a GPU that has rested
  std::vector<double> alone_single;
  std::vector<ring::Span> spans;  ///< none of kBoth
};

void to_json(nlohmann::json& json, const PassTimes& times);
void from_json(const nlohmann::json& json, PassTimes& times);

/// The ring, and in turns with it the same work without one: a rank's number of rows against as many keys as a row of
/// the problem sees in the mean, without a mask, so that all of it runs at the kernels' best; by all ranks at a time,
/// each on its own device, which share a machine's power as they do in the ring.
/// @param together  a rendezvous of all ranks
/// @return          for each of ring_passes()
[[nodiscard]] std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                               const std::function<void()>& together);

}  // namespace attend::cli
