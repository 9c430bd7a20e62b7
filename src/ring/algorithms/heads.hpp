// All-to-all over heads (DeepSpeed-Ulysses): rank r receives all rows and keys of the r-th share of the heads, computes
// them as a single device would, and sends every rank the results of its rows.
// Source: Jacobs et al., DeepSpeed Ulysses (2023).
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Returns the problems of this rank's heads. Their tensors have addresses that must not be accessed. For checks.
[[nodiscard]] std::vector<core::Problem> problems_of_heads(const Call& call);

/// Computes o and lse of the rank's rows, written to tensors of any float type.
void heads_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse);

/// Computes dq, dk and dv of the call.
/// @param deltas  as in make_host_engine; null on a GPU
void heads_backward(Engine& engine, const Call& call, const Tensor* deltas);

}  // namespace attend::ring
