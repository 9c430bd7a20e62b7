// The ring on the host. Keys and values travel around the ring, one step at a time. In backward, the sums of their
// gradients follow one step behind, and every rank adds the contribution of its rows. The last rank that sees a block
// sends its sums to the owner.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Adds the results over all keys to the rows that the engine accumulates. The caller must store them afterwards.
void exchange_forward(Transport& transport, const Call& call, Engine& engine);

/// Computes dq, dk and dv of the call.
void exchange_backward(Transport& transport, const Call& call, Engine& engine);

}  // namespace attend::ring
