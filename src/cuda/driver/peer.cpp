#include "cuda/driver/peer.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"

namespace attend::cuda {
namespace {

constexpr DriverResult kPeerAccessUnsupported = 217;
// Another library of the process has already enabled the access.
constexpr DriverResult kPeerAccessAlreadyEnabled = 704;
constexpr DriverResult kTooManyPeers = 711;

bool ask_for_access(int device, int peer) {
  const std::string doing = fmt::format("giving device {} access to the memory of device {}", device, peer);
  int can_access = 0;
  check_call(driver().can_access_peer(&can_access, device_handle(device), device_handle(peer)), "cuDeviceCanAccessPeer",
             doing);
  if (can_access == 0) return false;
  const ContextGuard guard(device);
  const DriverResult result = driver().enable_peer_access(primary_context(peer), 0);
  if (result == kPeerAccessUnsupported || result == kTooManyPeers) return false;
  if (result != kPeerAccessAlreadyEnabled) check_call(result, "cuCtxEnablePeerAccess", doing);
  return true;
}

struct AskedPairs {
  std::mutex mutex;
  std::map<std::pair<int, int>, bool> has_access;
};

AskedPairs& asked_pairs() {
  static auto* pairs = new AskedPairs;  // never destroyed, because the contexts are never released
  return *pairs;
}

}  // namespace

bool enable_peer_access(int device, int peer) {
  if (device == peer) return true;
  AskedPairs& asked = asked_pairs();
  const std::lock_guard lock(asked.mutex);
  const auto found = asked.has_access.find({device, peer});
  if (found != asked.has_access.end()) return found->second;
  const bool has_access = ask_for_access(device, peer);
  asked.has_access.emplace(std::pair(device, peer), has_access);
  return has_access;
}

void copy_between(const DevicePlace& to, const DevicePlace& from, std::size_t bytes, StreamHandle stream) {
  if (to.device == from.device) {
    return check_call(driver().copy_on_device(to.data, from.data, bytes, stream), "cuMemcpyDtoDAsync",
                      "copying on a device");
  }
  const DriverResult result = driver().copy_between_devices(to.data, primary_context(to.device), from.data,
                                                            primary_context(from.device), bytes, stream);
  if (result != 0) {
    fail_call(result, "cuMemcpyPeerAsync", fmt::format("copying from device {} to device {}", from.device, to.device));
  }
}

}  // namespace attend::cuda
