// The forward as a function of its own: the backward may need o before it was rounded.
#pragma once

#include "ring/call.hpp"

namespace attend::ring {

/// o and lse of the rank's rows over all keys, on the host, each rounded once to its tensor's dtype, any float type;
/// lse may be null. All ranks have to call.
void forward_on_host(Transport& transport, const Call& call, const Tensor& o, const Tensor* lse);

}  // namespace attend::ring
