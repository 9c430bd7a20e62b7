// What a rank keeps on its GPU from call to call: a stream for exchanges, and the memory of messages.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::ring {

class DeviceState {
 public:
  explicit DeviceState(int device);
  ~DeviceState();  ///< waits for the stream
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  [[nodiscard]] int device() const noexcept { return device_; }

  /// Of exchanges: beside the products of whoever calls, and before them where both want a multiprocessor.
  [[nodiscard]] cuda::StreamHandle stream() const noexcept { return stream_->get(); }

  /// Memory for messages, a multiple of 256 bytes from the start of each. The stream `user` may write to it from its
  /// present point on. Grows, and then waits for whoever used it last.
  [[nodiscard]] cuda::DevicePointer borrow(std::size_t bytes, cuda::StreamHandle user);

  /// `user` is done with the memory at its present point.
  void give_back(cuda::StreamHandle user);

 private:
  int device_;
  std::optional<cuda::OwnStream> stream_;  // these three want the context to be current when they go
  std::optional<cuda::Event> returned_;
  cuda::DeviceMemory memory_;
  bool is_lent_ = false;
};

}  // namespace attend::ring
