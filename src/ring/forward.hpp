// The forward ring as a function of its own: the backward may need o before it was rounded.
#pragma once

#include "ring/call.hpp"
#include "ring/merge.hpp"

namespace attend::ring {

/// o and lse of the rank's rows over all keys. All ranks have to call.
[[nodiscard]] MergedRows forward_pass(Transport& transport, const Call& call);

}  // namespace attend::ring
