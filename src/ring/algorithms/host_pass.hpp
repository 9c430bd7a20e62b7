// A call whose tensors are on the host: the algorithm agreed on, run by a backend of the CPU.
#pragma once

#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// o and lse of the rank's rows over all keys, on the host, each rounded once to its tensor's dtype, any float type;
/// lse may be null. All ranks have to call.
void forward_on_host(Transport& transport, const Call& call, const Tensor& o, const Tensor* lse);

/// dq, dk and dv of the call. All ranks have to call.
void backward_on_host(Transport& transport, const Call& call);

}  // namespace attend::ring
