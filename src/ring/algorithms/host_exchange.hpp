// The ring on the host: keys and values travel around the ring, one step at a time. In backward, the sums of their
// gradients follow one step behind, and every rank adds the contribution of its rows. The last rank that sees a block
// sends the sums to their owner.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Adds all parts of the rank's rows to the engine's rows; the caller stores them.
void exchange_forward(Transport& transport, const Call& call, Engine& engine);

/// Computes dq, dk and dv of the call.
void exchange_backward(Transport& transport, const Call& call, Engine& engine);

}  // namespace attend::ring
