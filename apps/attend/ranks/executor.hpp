// A workload computed by the ranks of a ring: each has all inputs, works on its rows, and rank 0 gets the results.
#pragma once

#include <memory>

#include "attend/ring.hpp"
#include "ranks/session.hpp"
#include "workload/executor.hpp"

namespace attend::cli {

/// run() and samples are collective: the time is that of the slowest rank, the same on every rank, so that all repeat a
/// pass as often. fetch() fills the outputs of `w` on rank 0. No gradient of a bias.
[[nodiscard]] std::unique_ptr<Executor> make_ring_executor(const Workload& w, const Choice& choice,
                                                           const RingParams& ring_params, RingSession& ring);

}  // namespace attend::cli
