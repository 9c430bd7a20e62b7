#include "cuda/serving/device_of.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"

namespace attend::cuda {

const DeviceInfo& device_of(const char* name, const Tensor& t) {
  try {
    const DeviceInfo& device = device_info(t.device.index);
    (void)device.arch();
    return device;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: on CUDA device {}, but {}", name, t.device.index, error.what()));
  }
}

}  // namespace attend::cuda
