#include "cuda/driver/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {
namespace {

constexpr int kMostDevices = 64;

/// Cached values of one GPU. Each member is set on first use, while the lock is held. Afterwards it never changes, so
/// readers need no lock. This matters because every launch reads these values.
struct DeviceState {
  std::atomic<const DeviceInfo*> info = nullptr;
  std::atomic<ContextHandle> primary = nullptr;
};

struct DeviceTable {
  std::mutex mutex;
  std::array<DeviceState, kMostDevices> states;
};

DeviceTable& table() {
  // Never destroyed, because other threads may still launch kernels while the process exits.
  static auto* instance = new DeviceTable;
  return *instance;
}

void check_index(int index) {
  const int count = std::min(device_count(), kMostDevices);
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("device: {}, allowed 0 to {}", index, count - 1));
  }
}

/// Returns the cached values of GPU `index`, or null if the index is out of range.
DeviceState* state(int index) {
  return index >= 0 && index < kMostDevices ? &table().states[static_cast<std::size_t>(index)] : nullptr;
}

DeviceInfo query(int index) {
  const Driver& d = driver();
  const DeviceIndex device = device_handle(index);
  const std::string doing = fmt::format("querying the properties of device {}", index);
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
  // The memory transfers data twice per clock cycle.
  const double transfers = 2e3 * attribute(DeviceAttribute::kMemoryClockKiloHertz);
  info.memory_bytes_per_s = transfers * attribute(DeviceAttribute::kMemoryBusBits) / 8;
  check_call(d.device_memory(&info.memory_bytes, device), "cuDeviceTotalMem", doing);
  return info;
}

}  // namespace

int device_count() {
  int count = 0;
  check_call(driver().device_count(&count), "cuDeviceGetCount", "counting devices");
  return count;
}

std::optional<std::string> missing_gpu() {
  try {
    if (device_count() > 0) return std::nullopt;
    return "no NVIDIA GPU is visible (see CUDA_VISIBLE_DEVICES)";
  } catch (const Error& error) {
    return error.what();
  }
}

std::optional<std::string> unusable_gpu(int index) {
  if (auto missing = missing_gpu()) return missing;
  try {
    const DeviceInfo& info = device_info(index);
    const Arch& arch = info.arch();
    const Nvrtc& nvrtc = Nvrtc::instance();
    const std::vector<int> known = nvrtc.supported_archs();
    if (std::find(known.begin(), known.end(), 10 * arch.major + arch.minor) != known.end()) return std::nullopt;
    return fmt::format("device: compute capability {}.{}, NVRTC {}.{} ({}) allows {}.{} and later: install another one",
                       info.major, info.minor, nvrtc.version_major(), nvrtc.version_minor(), nvrtc.path(),
                       known.front() / 10, known.front() % 10);
  } catch (const Error& error) {
    return error.what();
  }
}

const DeviceInfo& device_info(int index) {
  if (DeviceState* known = state(index); known != nullptr) {
    if (const DeviceInfo* info = known->info.load(std::memory_order_acquire)) return *info;
  }
  check_index(index);
  const std::lock_guard lock(table().mutex);
  DeviceState& s = *state(index);
  if (const DeviceInfo* info = s.info.load(std::memory_order_relaxed)) return *info;
  const auto* info = new DeviceInfo(query(index));
  s.info.store(info, std::memory_order_release);
  return *info;
}

DeviceIndex device_handle(int index) {
  DeviceIndex device = 0;
  check_call(driver().device_get(&device, index), "cuDeviceGet", fmt::format("opening device {}", index));
  return device;
}

ContextHandle primary_context(int index) {
  if (DeviceState* known = state(index); known != nullptr) {
    if (ContextHandle context = known->primary.load(std::memory_order_acquire)) return context;
  }
  check_index(index);
  const std::lock_guard lock(table().mutex);
  DeviceState& s = *state(index);
  ContextHandle context = s.primary.load(std::memory_order_relaxed);
  if (context == nullptr) {
    check_call(driver().primary_retain(&context, device_handle(index)), "cuDevicePrimaryCtxRetain",
               fmt::format("opening device {}", index));
    s.primary.store(context, std::memory_order_release);
  }
  return context;
}

ContextGuard::ContextGuard(int device) {
  const ContextHandle primary = primary_context(device);
  ContextHandle current = nullptr;
  // In threads that call the library repeatedly, the context is usually already current. If context_get fails, the push
  // below reports the error.
  if (driver().context_get(&current) == 0 && current == primary) return;
  const DriverResult result = driver().context_push(primary);
  // The message is created only on failure, because every launch calls this function.
  if (result != 0) fail_call(result, "cuCtxPushCurrent", fmt::format("making device {} current", device));
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  if (!pushed_) return;
  ContextHandle ours = nullptr;
  driver().context_pop(&ours);  // the result is ignored: the call that caused an error has already reported it
}

}  // namespace attend::cuda
