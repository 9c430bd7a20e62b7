// Computes a workload on the ranks of a ring: each rank has all inputs and computes its rows; rank 0 gets the results.
#pragma once

#include <memory>

#include "attend/ring.hpp"
#include "ranks/session.hpp"
#include "workload/executor.hpp"

namespace attend::cli {

/// run() and the samplers are collective. A sample is the time of the slowest rank and is the same on every rank, so
/// that all repeat a pass equally often. fetch() fills the outputs of `w` on rank 0. There is no gradient of a bias.
[[nodiscard]] std::unique_ptr<Executor> make_ring_executor(const Workload& w, const Choice& choice,
                                                           const RingParams& ring_params, RingSession& ring);

}  // namespace attend::cli
