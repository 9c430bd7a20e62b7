#include "ring/transport/transport.hpp"

#include <algorithm>
#include <vector>

#include "attend/error.hpp"

namespace attend::ring {

void Transport::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  std::vector<std::unique_ptr<Pending>> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    const std::span<std::byte> place = all.subspan(static_cast<std::size_t>(peer) * mine.size(), mine.size());
    if (peer == rank()) {
      std::copy(mine.begin(), mine.end(), place.begin());
      continue;
    }
    sends.push_back(send(peer, Channel::kAgreement, mine));
    receives.push_back(receive(peer, Channel::kAgreement, place));
  }
  for (const auto& receive : receives) receive->wait();
  for (const auto& send : sends) send->wait();
}

std::optional<std::string> Transport::allowed_instead(Device device) const {
  return device.type == DeviceType::kCPU ? std::nullopt : std::optional<std::string>("cpu");
}

void Transport::exchange(std::span<const DeviceMessage> /*sends*/, std::span<const DeviceMessage> /*receives*/) {
  throw Error(ErrorCode::kInternal, "ring: messages in GPU memory, allowed host memory");
}

DeviceState& Transport::state(int device) {
  if (!state_ || state_->device() != device) {
    state_.reset();
    state_ = std::make_unique<DeviceState>(device);
  }
  return *state_;
}

}  // namespace attend::ring
