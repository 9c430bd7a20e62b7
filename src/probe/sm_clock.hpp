// The clock that a GPU runs at, as its own timers tell: kernels/probe/sm_clock.cuh.
#pragma once

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// MHz of a multiprocessor of `device`, measured on `stream` for a fifth of a millisecond after what was put there
/// before; waits for it. The device's context has to be current.
[[nodiscard]] double sm_clock_mhz(int device, StreamHandle stream);

}  // namespace attend::cuda
