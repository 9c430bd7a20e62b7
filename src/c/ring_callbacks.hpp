// Converts the caller's functions of a ring to the types of the C++ interface.
#pragma once

#include "attend/ring.hpp"
#include "c/boundary.hpp"

namespace attend::c {

/// @param given  the result of read_struct
[[nodiscard]] RingCallbacks callbacks_of(const attend_ring_callbacks& given);

}  // namespace attend::c
