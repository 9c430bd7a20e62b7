// The work of one rank of `attend ring`. The rank computes its rows of a random problem, measures the time and records
// a timeline. It also measures the same work without a ring.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"
#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// Returns the passes to time. kBoth means a forward pass followed by a backward pass.
[[nodiscard]] std::vector<Mode> ring_passes(Mode mode);

/// Samples of one pass in milliseconds. Also the timeline of one additional call, which is not timed.
struct PassTimes {
  /// Times of calls on the ring. On a GPU, each is an average over consecutive calls.
  std::vector<double> samples;
  std::vector<double> alone;  ///< times of the rank's share without a ring
  /// Times of one call with the same number of pairs and no mask. Empty if `alone` has no mask.
  std::vector<double> unmasked;
  /// On a GPU, times of single calls on the ring. The GPU has rested before, which affects its clock.
  std::vector<double> single;
  std::vector<double> alone_single;
  std::vector<ring::Span> spans;  ///< spans of the additional call; empty for kBoth
};

void to_json(nlohmann::json& json, const PassTimes& times);
void from_json(const nlohmann::json& json, PassTimes& times);

/// Times the call on the ring and, in alternation with it, the same work without a ring. All ranks do this at the same
/// time, each on its own device, so that they share the machine's power as in the ring. The work without a ring is the
/// computation of the rank's rows against all keys that they see, under the problem's mask. Its time is scaled to the
/// average number of pairs per rank. The function also times a call without a mask, which shows the best speed of the
/// kernels. That call has the rank's number of rows and the average number of keys per row. If the problem has no mask
/// or tokens are striped, it replaces the work without a ring.
/// @param together  returns when all ranks have called it
/// @return          one entry for each pass in ring_passes()
[[nodiscard]] std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                               const std::function<void()>& together);

}  // namespace attend::cli
