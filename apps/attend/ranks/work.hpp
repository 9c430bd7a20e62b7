// What one rank of `attend ring` does: its rows of a random problem, timed and recorded; and the same work alone.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attend/ring.hpp"
#include "options/options.hpp"
#include "ring/transport/timeline.hpp"

namespace attend::cli {

/// Passes that are timed. kBoth is a forward and a backward in a row.
[[nodiscard]] std::vector<Mode> ring_passes(Mode mode);

/// Of one pass: samples in milliseconds, and when what was done in one more call, which is not timed.
struct PassTimes {
  std::vector<double> samples;   ///< of the ring, on a GPU of calls in a row
  std::vector<double> alone;     ///< of the rank's share alone
  std::vector<double> unmasked;  ///< of one call with as many pairs and no mask; none where `alone` is that
  std::vector<double> single;    ///< on a GPU, of calls by themselves: clocks are those of a GPU that has rested
  std::vector<double> alone_single;
  std::vector<ring::Span> spans;  ///< none of kBoth
};

void to_json(nlohmann::json& json, const PassTimes& times);
void from_json(const nlohmann::json& json, PassTimes& times);

/// The ring, and in turns with it the same work without one, by all ranks at a time, each on its own device, which
/// share a machine's power as they do in the ring. The work alone: the rank's rows against all keys that they see,
/// under the problem's mask, its time scaled to the mean of all ranks' pairs. Beside it a rank's number of rows against
/// as many keys as a row of the problem sees in the mean, without a mask, so that all of it runs at the kernels' best;
/// where there is no mask, or tokens are dealt out in stripes, that is the work alone.
/// @param together  a rendezvous of all ranks
/// @return          for each of ring_passes()
[[nodiscard]] std::vector<PassTimes> time_rank(const RingOptions& options, const RingContext& context, Device device,
                                               const std::function<void()>& together);

}  // namespace attend::cli
