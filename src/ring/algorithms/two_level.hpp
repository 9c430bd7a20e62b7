// The two-level algorithm. Ranks of a group distribute heads among each other, so that a rank has all rows of its group
// for a share of the heads. Groups exchange keys and values as the ranks of a ring do: each rank with the rank of the
// same number in other groups. A block crosses the links between groups, which may be slower, fewer times than in a
// ring of all ranks. The number of heads only needs to be a multiple of the group size.
// Source: Fang & Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI (2024).
#pragma once

#include <functional>

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Runs an exchange over a ring of groups.
using ExchangePass = std::function<void(Transport& transport, const Call& call)>;

/// Computes o and lse of the rank's rows, written to tensors of any float type.
void two_level_forward(Transport& transport, Engine& engine, const Call& call, const Tensor& o, const Tensor* lse,
                       const ExchangePass& exchange);

/// Computes dq, dk and dv of the call.
/// @param deltas  as in make_host_engine; null on a GPU
void two_level_backward(Transport& transport, Engine& engine, const Call& call, const Tensor* deltas,
                        const ExchangePass& exchange);

}  // namespace attend::ring
