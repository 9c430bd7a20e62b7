// Runs a call whose tensors are in host memory. It uses the algorithm of the call, with a CPU backend.
#pragma once

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Computes o and lse of the rank's rows over all keys. `o` and `lse` may have any float type, and each is rounded
/// once. `lse` may be null. All ranks must call this function.
void forward_on_host(Transport& transport, const Call& call, const Tensor& o, const Tensor* lse);

/// Computes dq, dk and dv of the call. All ranks must call this function.
void backward_on_host(Transport& transport, const Call& call);

}  // namespace attend::ring
