// Runs a call whose tensors are on a GPU. It uses the algorithm of the call, with the best kernel family for each
// piece.
#pragma once

#include "cuda/driver/driver_types.hpp"
#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// @throws Error naming the first piece that no GPU backend supports. Reads and writes no tensor data.
void check_pieces(const Call& call);

/// Run the GPU part of ring_forward and ring_backward. The device's context must be current.
void forward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);
void backward_on_device(Transport& transport, const Call& call, cuda::StreamHandle stream);

}  // namespace attend::ring
