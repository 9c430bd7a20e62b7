// Computes a workload on the ranks of a ring. Each rank has all inputs and computes its rows. Rank 0 receives the
// results.
#pragma once

#include <memory>

#include "attend/ring.hpp"
#include "ranks/session.hpp"
#include "workload/executor.hpp"

namespace attend::cli {

/// Returns an executor whose run() and samplers are collective. A sample is the time of the slowest rank. It is the
/// same on every rank, so that all ranks repeat a pass equally often. fetch() writes the outputs of `w` on rank 0. The
/// gradient of a bias is not computed.
[[nodiscard]] std::unique_ptr<Executor> make_ring_executor(const Workload& w, const Choice& choice,
                                                           const RingParams& ring_params, RingSession& ring);

}  // namespace attend::cli
