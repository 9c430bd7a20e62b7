// The passes of the ring on GPUs: the same plan as on CPUs, put on two streams. Keys travel on the rank's own stream
// beside the products on the caller's, and events order the two; nobody waits on the host.
#pragma once

#include "cuda/driver/driver_types.hpp"
#include "ring/call.hpp"

namespace attend::ring {

/// @throws Error naming the first piece that the backends of GPUs lack something for. Nothing is read or written.
void check_pieces(const Call& call);

/// ring_forward and ring_backward of a call whose tensors are on a GPU. Want the device's context current.
void forward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);
void backward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);

}  // namespace attend::ring
