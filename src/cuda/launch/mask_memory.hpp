// What a mask's forms in the memory of GPUs share: how they are made once for a mask, filled, and given back.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// The T at a place of a mask's, made by the first who asks; it goes with the mask. Thread-safe.
template <class T>
[[nodiscard]] std::shared_ptr<T> made_once(std::shared_ptr<void>& place) {
  static auto* mutex = new std::mutex();  // launches may go on while the process ends
  const std::lock_guard lock(*mutex);
  if (place == nullptr) place = std::make_shared<T>();
  return std::static_pointer_cast<T>(place);
}

/// Begins to copy to memory of the same size.
template <class T>
void fill(DeviceMemory& memory, const std::vector<T>& from, StreamHandle stream) {
  if (from.empty()) return;
  check_call(driver().copy_to_device(memory.data(), from.data(), from.size() * sizeof(T), stream), "cuMemcpyHtoDAsync",
             "copying a block mask to the device");
}

/// From a destructor, of memory of that device.
template <class... Memory>
void give_back(int device, Memory&... memory) noexcept {
  try {
    const ContextGuard guard(device);
    const RelaxedCapture relaxed;
    ((memory = DeviceMemory(0)), ...);
  } catch (const Error&) {
    // The driver has shut down before us, and the memory with it.
  }
}

}  // namespace attend::cuda
