// Helpers for the copies of a mask in GPU memory. They create, fill and free these copies.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// Returns the object of type T that `place`, a member of the mask, points to. The first call creates the object. It is
/// freed together with the mask. Thread-safe.
template <class T>
[[nodiscard]] std::shared_ptr<T> made_once(std::shared_ptr<void>& place) {
  static auto* mutex = new std::mutex();  // never destroyed, because launches may continue during process exit
  const std::lock_guard lock(*mutex);
  if (place == nullptr) place = std::make_shared<T>();
  return std::static_pointer_cast<T>(place);
}

/// Starts an asynchronous copy of `from` to device memory of the same size.
template <class T>
void fill(DeviceMemory& memory, const std::vector<T>& from, StreamHandle stream) {
  if (from.empty()) return;
  check_call(driver().copy_to_device(memory.data(), from.data(), from.size() * sizeof(T), stream), "cuMemcpyHtoDAsync",
             "copying a block mask to the device");
}

/// Frees memory of GPU `device`. Never throws, so destructors may call it.
template <class... Memory>
void give_back(int device, Memory&... memory) noexcept {
  try {
    const ContextGuard guard(device);
    const RelaxedCapture relaxed;
    ((memory = DeviceMemory(0)), ...);
  } catch (const Error&) {
    // The driver has already shut down and has freed the memory.
  }
}

}  // namespace attend::cuda
