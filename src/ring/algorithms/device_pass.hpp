// Runs a call whose tensors are on a GPU: the agreed algorithm, with the best kernel family for each part.
#pragma once

#include "cuda/driver/driver_types.hpp"
#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// @throws Error naming the first piece that no GPU backend supports. Reads and writes no tensor.
void check_pieces(const Call& call);

/// Run ring_forward and ring_backward of a call whose tensors are on a GPU. The device's context must be current.
void forward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);
void backward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);

}  // namespace attend::ring
