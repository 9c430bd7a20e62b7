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

/// Times of one pass in milliseconds, and the timeline of one additional call that is not timed.
struct PassTimes {
  /// Times of calls on the ring. On a GPU, each sample is an average over consecutive calls.
  std::vector<double> samples;
  std::vector<double> alone;  ///< times of the rank's share without a ring
  /// Times of a call that computes the same number of pairs without a mask. Empty if the problem has no mask.
  std::vector<double> unmasked;
  /// Times of single calls on the ring, on a GPU. The GPU is idle before each call, which affects its clock.
  std::vector<double> single;
  std::vector<double> alone_single;
  std::vector<ring::Span> spans;  ///< spans of the additional call; empty for kBoth
};

void to_json(nlohmann::json& json, const PassTimes& times);
void from_json(const nlohmann::json& json, PassTimes& times);

/// Times three calls in alternation. The first call runs on the ring. The second call computes the same work without a
/// ring: attention of the rank's rows over all keys that they see, with the problem's mask. Its time is scaled to the
/// average number of pairs per rank. The third call has no mask, and shows the best speed of the kernels. It has the
/// rank's number of rows and the average number of keys per row. If the problem has no mask, or if tokens are striped,
/// the third call also replaces the second. All ranks time their calls at the same time, each on a separate device, so
/// that they share the machine's power as in the ring.
/// @param together function that returns when all ranks have called it
/// @return          one entry for each pass in ring_passes()
[[nodiscard]] std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                               const std::function<void()>& together);

}  // namespace attend::cli
