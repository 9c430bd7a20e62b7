// Runs a call whose tensors are on the host: the agreed algorithm, with a CPU backend.
#pragma once

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Computes o and lse of the rank's rows over all keys, each rounded once to its tensor's dtype, any float type; lse
/// may be null. All ranks have to call.
void forward_on_host(Transport& transport, const Call& call, const Tensor& o, const Tensor* lse);

/// Computes dq, dk and dv of the call. All ranks have to call.
void backward_on_host(Transport& transport, const Call& call);

}  // namespace attend::ring
