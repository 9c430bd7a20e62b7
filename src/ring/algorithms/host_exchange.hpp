// The ring on the host. Keys and values travel around the ring, one step at a time. In backward, the sums of their
// gradients follow one step behind, and every rank adds the contribution of its rows. The last rank that sees a block
// sends its sums to the owner.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Computes the results of the rank's rows over all keys. The engine merges the results, and afterwards the caller must
/// store them by engine.store_rows().
void exchange_forward(Transport& transport, const Call& call, Engine& engine);

/// Computes dq, dk and dv of the call.
void exchange_backward(Transport& transport, const Call& call, Engine& engine);

}  // namespace attend::ring
