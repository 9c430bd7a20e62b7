// The GPU that a call for serving computes on.
#pragma once

#include "attend/tensor.hpp"
#include "cuda/driver/device.hpp"

namespace attend::cuda {

/// The GPU of the tensor that decides where a call computes; `name` is what the call names it.
/// @throws Error naming it where there is no such GPU, or none that the library compiles for.
[[nodiscard]] const DeviceInfo& device_of(const char* name, const Tensor& t);

}  // namespace attend::cuda
