// Measures the clock rate of a GPU with its timers (kernels/probe/sm_clock.cuh).
#pragma once

#include "cuda/driver/driver_types.hpp"

namespace attend::cuda {

/// Returns the clock rate of a multiprocessor of `device` in MHz. The measurement starts after earlier work on `stream`
/// and takes a fifth of a millisecond. The function waits for the result. The device's context must be current.
[[nodiscard]] double sm_clock_mhz(int device, StreamHandle stream);

}  // namespace attend::cuda
