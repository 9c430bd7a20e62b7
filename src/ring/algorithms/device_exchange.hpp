// The ring on GPUs: the plan and the steps of the host's, put on two streams. Keys travel on the rank's own stream
// beside the products on the caller's. Events order the two, and nobody waits on the host.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// o and lse, or dq, dk and dv, of the call. Want the device's context current.
/// @param stream  the caller's, as the engine has it
void exchange_forward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);
void exchange_backward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);

}  // namespace attend::ring
