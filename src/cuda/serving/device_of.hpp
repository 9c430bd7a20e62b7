// Finds the GPU of a serving call.
#pragma once

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// Returns the GPU that holds `t`. All kernels of the call run on this GPU. `name` is the name of the tensor in error
/// messages.
/// @throws Error if the GPU does not exist or the library does not support it.
[[nodiscard]] const DeviceInfo& device_of(const char* name, const Tensor& t);

}  // namespace attend::cuda
