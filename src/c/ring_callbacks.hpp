// The caller's functions of a ring, in the form for the C++ interface.
#pragma once

#include "attend/ring.hpp"
#include "c/boundary.hpp"

namespace attend::c {

/// @param given  from read_struct
[[nodiscard]] RingCallbacks callbacks_of(const attend_ring_callbacks& given);

}  // namespace attend::c
