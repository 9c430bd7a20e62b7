// All-gather: a rank takes the keys and values that its rows see, of all ranks at once, and computes with them as one
// device does. Backward the sums of their gradients go home, where they are added by rank.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// o and lse of the rank's rows, written to tensors of any float type.
void gather_forward(Engine& engine, const Call& call, const Tensor& o, const Tensor* lse);

/// dq, dk and dv of the call.
void gather_backward(Engine& engine, const Call& call);

}  // namespace attend::ring
