#include "cuda/driver/memory_pool.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {
namespace {

constexpr int kMostDevices = 64;

struct Pools {
  std::mutex mutex;  // of making one
  std::array<std::atomic<MemoryPoolHandle>, kMostDevices> of_device = {};
};

MemoryPoolHandle make_pool(DeviceIndex device) {
  const std::string doing = fmt::format("making a memory pool on device {}", device);
  MemoryPoolProperties properties = {};
  properties.allocation_type = MemoryPoolProperties::kPinned;
  properties.location_type = MemoryPoolProperties::kDevice;
  properties.location_id = device;
  MemoryPoolHandle pool = nullptr;
  const RelaxedCapture relaxed;  // the first call of a process may be part of a capture
  check_call(driver().pool_create(&pool, &properties), "cuMemPoolCreate", doing);
  std::uint64_t keeps = kPoolKeepsBytes;
  check_call(driver().pool_set_attribute(pool, MemoryPoolAttribute::kReleaseThreshold, &keeps), "cuMemPoolSetAttribute",
             doing);
  return pool;
}

}  // namespace

MemoryPoolHandle current_memory_pool() {
  static auto* pools = new Pools();  // launches may go on while the process ends
  DeviceIndex device = 0;
  check_call(driver().context_device(&device), "cuCtxGetDevice", "looking for the current device");
  if (device < 0 || device >= kMostDevices) {
    throw Error(ErrorCode::kUnsupported, fmt::format("device: {}, allowed 0 to {}", device, kMostDevices - 1));
  }
  auto& slot = pools->of_device[static_cast<std::size_t>(device)];
  if (MemoryPoolHandle pool = slot.load(std::memory_order_acquire)) return pool;
  const std::lock_guard lock(pools->mutex);
  MemoryPoolHandle pool = slot.load(std::memory_order_relaxed);
  if (pool == nullptr) {
    pool = make_pool(device);
    slot.store(pool, std::memory_order_release);
  }
  return pool;
}

}  // namespace attend::cuda
