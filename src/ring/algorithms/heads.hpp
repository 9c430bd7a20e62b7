// All-to-all over heads (DeepSpeed-Ulysses). The heads are divided into one share per rank. Rank r receives all rows
// and keys of share r, and computes attention for these heads as a single device would. It then sends every rank the
// results of that rank's rows.
//
// Source: Jacobs et al., DeepSpeed Ulysses (2023).
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Returns the problems for this rank's heads. They are only for checks, because the addresses of their tensors are not
/// valid.
[[nodiscard]] std::vector<core::Problem> problems_of_heads(const Call& call);

/// Computes o and lse of the rank's rows. `o` and `lse` may have any float type.
void heads_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse);

/// Computes dq, dk and dv of the call.
/// @param deltas  the argument `deltas` of make_host_engine(); null on a GPU
void heads_backward(Engine& engine, const Call& call, const Tensor* deltas);

}  // namespace attend::ring
