// All-to-all over heads (DeepSpeed-Ulysses): rank r takes all rows and keys of the r-th share of the heads, computes
// them as one device does, and sends every rank the results of its rows.
// Source: Jacobs et al., DeepSpeed Ulysses (2023).
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// The problems of one device that this rank's heads are, with tensors at addresses that nobody may read: for checks.
[[nodiscard]] std::vector<core::Problem> problems_of_heads(const Call& call);

/// o and lse of the rank's rows, written to tensors of any float type.
void heads_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse);

/// dq, dk and dv of the call.
/// @param deltas  as make_host_engine has them; null on a GPU
void heads_backward(Engine& engine, const Call& call, const Tensor* deltas);

}  // namespace attend::ring
