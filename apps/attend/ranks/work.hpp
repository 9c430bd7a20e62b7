// The work of one rank of `attend ring`: its rows of a random problem, timed and recorded, and the same work without a
// ring.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"
#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// Returns the passes to be timed. kBoth is a forward followed by a backward.
[[nodiscard]] std::vector<Mode> ring_passes(Mode mode);

/// Samples of one pass in milliseconds, and the timeline of one more call, which is not timed.
struct PassTimes {
  std::vector<double> samples;   ///< of the ring; on a GPU, averages of calls in a row
  std::vector<double> alone;     ///< of the rank's share without a ring
  std::vector<double> unmasked;  ///< of one call with the same number of pairs and no mask; empty if `alone` is it
  std::vector<double> single;    ///< on a GPU, of separate calls, with the clocks of a GPU that has rested
  std::vector<double> alone_single;
  std::vector<ring::Span> spans;  ///< empty for kBoth
};

void to_json(nlohmann::json& json, const PassTimes& times);
void from_json(const nlohmann::json& json, PassTimes& times);

/// Times the ring and, in alternation with it, the same work without a ring. All ranks do this at the same time, each
/// on its own device, so that they share the machine's power as in the ring. The work without a ring is the rank's rows
/// against all keys that they see, under the problem's mask; its time is scaled to the average number of pairs per
/// rank. It also times the rank's number of rows against the average number of keys per row without a mask, which is
/// the kernels' best speed. Without a mask or with a striped sharding, that is the work without a ring.
/// @param together  waits until all ranks have called it
/// @return          one entry for each of ring_passes()
[[nodiscard]] std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                               const std::function<void()>& together);

}  // namespace attend::cli
