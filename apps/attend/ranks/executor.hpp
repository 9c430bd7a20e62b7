// Computes a workload on the ranks of a ring. Each rank has all inputs and computes its rows. Rank 0 receives the
// results.
#pragma once

#include <memory>

#include "attend/ring.hpp"
#include "ranks/session.hpp"
#include "workload/executor.hpp"

namespace attend::cli {

/// Returns an executor for one rank. All ranks must call run() and the samplers together. A sample is the time of the
/// slowest rank. Every rank gets the same number, so that all ranks repeat a pass the same number of times. On rank 0,
/// fetch() writes the outputs to `w`. The gradient of a bias is not computed.
[[nodiscard]] std::unique_ptr<Executor> make_ring_executor(const Workload& w, const Choice& choice,
                                                           const RingParams& ring_params, RingSession& ring);

}  // namespace attend::cli
