// The ring on the host: keys and values go round, a step at a time. Backward the sums of their gradients follow them,
// one step behind, and every rank adds its rows' share. The last rank that sees a block sends its sums home.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Adds all parts of the rank's rows to the engine's rows; the caller stores them.
void exchange_forward(Transport& transport, const Call& call, Engine& engine);

/// dq, dk and dv of the call.
void exchange_backward(Transport& transport, const Call& call, Engine& engine);

}  // namespace attend::ring
