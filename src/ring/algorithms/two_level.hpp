// The two-level algorithm. Ranks of a group distribute heads among each other, so that each rank has all rows of its
// group for a share of the heads. Groups then exchange keys and values as the ranks of a ring do. Each rank exchanges
// with the ranks that have the same number in other groups. Links between groups may be slow. Compared with a ring of
// all ranks, blocks cross these links fewer times. Compared with kAllToAll, the number of heads need only be a multiple
// of the group size.
//
// Source: Fang & Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI (2024).
#pragma once

#include <functional>

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// A function that runs the exchange algorithm over a ring of groups.
using ExchangePass = std::function<void(Transport& transport, const Call& call)>;

/// Computes o and lse of the rank's rows. `o` and `lse` may have any float type.
void two_level_forward(Transport& transport, Engine& engine, const Call& call, const Tensor& o, const Tensor* lse,
                       const ExchangePass& exchange);

/// Computes dq, dk and dv of the call.
/// @param deltas  the argument `deltas` of make_host_engine(); null on a GPU
void two_level_backward(Transport& transport, Engine& engine, const Call& call, const Tensor* deltas,
                        const ExchangePass& exchange);

}  // namespace attend::ring
