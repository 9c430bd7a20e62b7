#include "cuda/driver/device.hpp"

#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <optional>

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"

namespace attend::cuda {
namespace {

/// What is kept for each GPU. Both parts are filled at first use, under the lock.
struct DeviceState {
  std::optional<DeviceInfo> info;
  ContextHandle primary = nullptr;
};

struct DeviceTable {
  std::mutex mutex;
  std::deque<DeviceState> states;  // grows at the end, so that references stay good
};

DeviceTable& table() {
  static auto* instance = new DeviceTable;  // never destroyed: other threads may still be launching at exit
  return *instance;
}

void check_index(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("device: {}, allowed 0 to {}", index, count - 1));
  }
}

DeviceState& state(int index) {
  auto& states = table().states;
  while (states.size() <= static_cast<std::size_t>(index)) states.emplace_back();
  return states[static_cast<std::size_t>(index)];
}

DeviceIndex handle(int index) {
  DeviceIndex device = 0;
  check_call(driver().device_get(&device, index), "cuDeviceGet", fmt::format("opening device {}", index));
  return device;
}

DeviceInfo query(int index) {
  const Driver& d = driver();
  const DeviceIndex device = handle(index);
  const std::string doing = fmt::format("asking device {} for its properties", index);
  const auto attribute = [&](DeviceAttribute which) {
    int value = 0;
    check_call(d.device_attribute(&value, which, device), "cuDeviceGetAttribute", doing);
    return value;
  };
  char name[256] = {};
  DeviceInfo info;
  info.index = index;
  check_call(d.device_name(name, sizeof(name) - 1, device), "cuDeviceGetName", doing);
  info.name = name;
  info.major = attribute(DeviceAttribute::kComputeCapabilityMajor);
  info.minor = attribute(DeviceAttribute::kComputeCapabilityMinor);
  info.num_multiprocessors = attribute(DeviceAttribute::kMultiprocessorCount);
  info.max_smem_per_block = attribute(DeviceAttribute::kMaxSmemPerBlockOptin);
  info.max_smem_per_multiprocessor = attribute(DeviceAttribute::kMaxSmemPerMultiprocessor);
  info.l2_bytes = static_cast<std::size_t>(attribute(DeviceAttribute::kL2CacheBytes));
  check_call(d.device_memory(&info.memory_bytes, device), "cuDeviceTotalMem", doing);
  return info;
}

ContextHandle primary_context(int index) {
  check_index(index);
  const std::lock_guard lock(table().mutex);
  DeviceState& s = state(index);
  if (s.primary == nullptr) {
    check_call(driver().primary_retain(&s.primary, handle(index)), "cuDevicePrimaryCtxRetain",
               fmt::format("opening device {}", index));
  }
  return s.primary;
}

}  // namespace

int device_count() {
  int count = 0;
  check_call(driver().device_count(&count), "cuDeviceGetCount", "counting devices");
  return count;
}

const DeviceInfo& device_info(int index) {
  check_index(index);
  const std::lock_guard lock(table().mutex);
  DeviceState& s = state(index);
  if (!s.info) s.info = query(index);
  return *s.info;
}

ContextGuard::ContextGuard(int device) {
  const DriverResult result = driver().context_push(primary_context(device));
  // The text is made only where it is needed: every launch passes here.
  if (result != 0) fail_call(result, "cuCtxPushCurrent", fmt::format("making device {} current", device));
}

ContextGuard::~ContextGuard() {
  ContextHandle ours = nullptr;
  driver().context_pop(&ours);  // a failure here has been reported by the call that caused it
}

}  // namespace attend::cuda
