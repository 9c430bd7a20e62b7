// The ring on GPUs. The plan and the steps are those of the host version, but all work is queued on two streams. Keys
// travel on the rank's own stream while the products run on the caller's stream. Events order the two streams, and the
// host does not wait.
#pragma once

#include "ring/engine/engine.hpp"

namespace attend::ring {

/// Compute o and lse (forward), or dq, dk and dv (backward). The device's context must be current.
/// @param stream  the caller's stream, which `engine` also uses
void exchange_forward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);
void exchange_backward_on_device(Transport& transport, const Call& call, Engine& engine, cuda::StreamHandle stream);

}  // namespace attend::ring
