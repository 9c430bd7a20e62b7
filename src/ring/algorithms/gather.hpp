// The all-gather algorithm. A rank receives the keys and values that its rows see, from all ranks at once. It then
// computes as a single device would. In backward, the sums of their gradients return to the owners, which add them in
// the order of ranks.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Computes o and lse of the rank's rows. `o` and `lse` may have any float type.
void gather_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse);

/// Computes dq, dk and dv of the call.
void gather_backward(Engine& engine, const Call& call);

}  // namespace attend::ring
