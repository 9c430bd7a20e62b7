// The GPU of a serving call.
#pragma once

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// Returns the GPU of the tensor that determines where a call runs. `name` is the tensor's name in the call.
/// @throws Error with the name if the GPU does not exist or the library does not support it.
[[nodiscard]] const DeviceInfo& device_of(const char* name, const Tensor& t);

}  // namespace attend::cuda
