#include "cuda/driver/memory_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "attend/error.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {
namespace {

constexpr int kMostDevices = 64;

struct Pools {
  std::mutex mutex;  // held while a pool is created
  std::array<std::atomic<MemoryPoolHandle>, kMostDevices> of_device = {};
};

MemoryPoolHandle make_pool(DeviceIndex device) {
  const std::string doing = fmt::format("making a memory pool on device {}", device);
  MemoryPoolProperties properties = {};
  properties.allocation_type = MemoryPoolProperties::kPinned;
  properties.location_type = MemoryPoolProperties::kDevice;
  properties.location_id = device;
  MemoryPoolHandle pool = nullptr;
  const RelaxedCapture relaxed;  // the first call of a process may occur while the thread captures a CUDA graph
  check_call(driver().pool_create(&pool, &properties), "cuMemPoolCreate", doing);
  std::uint64_t keeps = kPoolKeepsBytes;
  check_call(driver().pool_set_attribute(pool, MemoryPoolAttribute::kReleaseThreshold, &keeps), "cuMemPoolSetAttribute",
             doing);
  return pool;
}

Pools& all_pools() {
  static auto* pools = new Pools();  // never destroyed, because launches may continue during process exit
  return *pools;
}

/// Returns the pool of a GPU, or null if the library has not used the GPU yet. @throws Error if there is no such GPU.
MemoryPoolHandle pool_of(int device) {
  const int index = device_info(device).index;
  return all_pools().of_device[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
}

}  // namespace

PoolUsage memory_pool_usage(int device) {
  const MemoryPoolHandle pool = pool_of(device);
  if (pool == nullptr) return {};
  const auto ask = [pool](MemoryPoolAttribute which) {
    std::uint64_t bytes = 0;
    check_call(driver().pool_get_attribute(pool, which, &bytes), "cuMemPoolGetAttribute", "counting the pool's memory");
    return bytes;
  };
  using enum MemoryPoolAttribute;
  PoolUsage usage = {ask(kUsed), ask(kUsedPeak), ask(kReserved), ask(kReservedPeak)};
  // After a reset, the driver reports a peak of 0 until the next allocation. The peak is at least the current usage.
  usage.used_peak = std::max(usage.used_peak, usage.used);
  usage.reserved_peak = std::max(usage.reserved_peak, usage.reserved);
  return usage;
}

void reset_memory_pool_peaks(int device) {
  const MemoryPoolHandle pool = pool_of(device);
  if (pool == nullptr) return;
  for (const MemoryPoolAttribute peak : {MemoryPoolAttribute::kUsedPeak, MemoryPoolAttribute::kReservedPeak}) {
    std::uint64_t zero = 0;
    check_call(driver().pool_set_attribute(pool, peak, &zero), "cuMemPoolSetAttribute", "resetting the pool's peaks");
  }
}

MemoryPoolHandle current_memory_pool() {
  Pools& pools = all_pools();
  DeviceIndex device = 0;
  check_call(driver().context_device(&device), "cuCtxGetDevice", "querying the current device");
  if (device < 0 || device >= kMostDevices) {
    throw Error(ErrorCode::kUnsupported, fmt::format("device: {}, allowed 0 to {}", device, kMostDevices - 1));
  }
  auto& slot = pools.of_device[static_cast<std::size_t>(device)];
  if (MemoryPoolHandle pool = slot.load(std::memory_order_acquire)) return pool;
  const std::lock_guard lock(pools.mutex);
  MemoryPoolHandle pool = slot.load(std::memory_order_relaxed);
  if (pool == nullptr) {
    pool = make_pool(device);
    slot.store(pool, std::memory_order_release);
  }
  return pool;
}

}  // namespace attend::cuda
