// A call whose tensors are on a GPU: the algorithm agreed on, each part run by the best family of kernels.
#pragma once

#include "cuda/driver/driver_types.hpp"
#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// @throws Error naming the first piece that the backends of GPUs lack something for. Nothing is read or written.
void check_pieces(const Call& call);

/// ring_forward and ring_backward of a call whose tensors are on a GPU. Want the device's context current.
void forward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);
void backward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);

}  // namespace attend::ring
