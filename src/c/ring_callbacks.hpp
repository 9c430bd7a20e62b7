// The caller's functions of a ring, as the C++ interface takes them.
#pragma once

#include "attend/ring.hpp"
#include "c/boundary.hpp"

namespace attend::c {

/// @param given  as read_struct has read it
[[nodiscard]] RingCallbacks callbacks_of(const attend_ring_callbacks& given);

}  // namespace attend::c
