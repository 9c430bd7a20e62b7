// Shared helpers for the device copies of a mask: creation once per mask, copying, and release.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// Returns the T stored at `place`, a member of the mask. The first call creates it. It lives as long as the mask.
/// Thread-safe.
template <class T>
[[nodiscard]] std::shared_ptr<T> made_once(std::shared_ptr<void>& place) {
  static auto* mutex = new std::mutex();  // never destroyed, because launches may continue during process exit
  const std::lock_guard lock(*mutex);
  if (place == nullptr) place = std::make_shared<T>();
  return std::static_pointer_cast<T>(place);
}

/// Starts an asynchronous copy to device memory of the same size.
template <class T>
void fill(DeviceMemory& memory, const std::vector<T>& from, StreamHandle stream) {
  if (from.empty()) return;
  check_call(driver().copy_to_device(memory.data(), from.data(), from.size() * sizeof(T), stream), "cuMemcpyHtoDAsync",
             "copying a block mask to the device");
}

/// Frees memory of `device`. Safe to call from a destructor.
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
