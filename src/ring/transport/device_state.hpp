// What a rank keeps on its GPU from call to call: a stream for exchanges, and the memory of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

  /// From now on memory that was outgrown stays until drop_outgrown(): other processes may have it open.
  void keep_outgrown() { keeps_outgrown_ = true; }
  [[nodiscard]] bool has_outgrown() const noexcept { return !outgrown_.empty(); }
  void drop_outgrown() { outgrown_.clear(); }

  /// Where it begins, and another number each time it grows.
  [[nodiscard]] cuda::DevicePointer memory() const noexcept { return memory_.data(); }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// `user` is done with the memory at its present point.
  void give_back(cuda::StreamHandle user);

 private:
  int device_;
  std::optional<cuda::OwnStream> stream_;  // these three want the context to be current when they go
  std::optional<cuda::Event> returned_;
  cuda::DeviceMemory memory_;
  std::uint64_t generation_ = 0;
  std::vector<cuda::DeviceMemory> outgrown_;
  bool keeps_outgrown_ = false;
  bool is_lent_ = false;
};

}  // namespace attend::ring
