// The ring on GPUs: the plan and steps of the host version, queued on two streams. Keys travel on the rank's stream
// while the products run on the caller's stream. Events order the two streams, and the host does not wait.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Compute o and lse, or dq, dk and dv, of the call. The device's context must be current.
/// @param stream  the caller's stream, as in the engine
void exchange_forward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);
void exchange_backward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);

}  // namespace attend::ring
