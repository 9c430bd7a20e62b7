// Two levels: ranks of a group deal heads out to each other, so that a rank has all rows of its group for a share of
// the heads; groups exchange keys and values as the ranks of a ring do, each rank with its like in the others.
// Between groups, whose links may be the slower ones, a block goes fewer times than in a ring of all ranks, and heads
// need to be divided by the members of a group only.
// Source: Fang & Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI (2024).
#pragma once

#include <functional>

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// An exchange over the ranks of a ring of groups.
using ExchangePass = std::function<void(Transport& transport, const Call& call)>;

/// o and lse of the rank's rows, written to tensors of any float type.
void two_level_forward(Transport& transport, Engine& engine, const Call& call, const Tensor& o, const Tensor* lse,
                       const ExchangePass& exchange);

/// dq, dk and dv of the call.
/// @param deltas  as make_host_engine has them; null on a GPU
void two_level_backward(Transport& transport, Engine& engine, const Call& call, const Tensor* deltas,
                        const ExchangePass& exchange);

}  // namespace attend::ring
