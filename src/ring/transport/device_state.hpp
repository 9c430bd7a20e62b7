// State of a rank on its GPU, kept from call to call: a stream for exchanges, and the memory of messages.
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

  /// Stream of exchanges. Runs concurrently with the caller's kernels, with a higher priority for multiprocessors.
  [[nodiscard]] cuda::StreamHandle stream() const noexcept { return stream_->get(); }

  /// Returns memory for messages, at a multiple of 256 bytes. The stream `user` may write to it from its current point
  /// on. If the memory must grow, waits for its last user.
  [[nodiscard]] cuda::DevicePointer borrow(std::size_t bytes, cuda::StreamHandle user);

  /// From now on, outgrown memory is kept until drop_outgrown(), because other processes may have it open.
  void keep_outgrown() { keeps_outgrown_ = true; }
  [[nodiscard]] bool has_outgrown() const noexcept { return !outgrown_.empty(); }
  void drop_outgrown() { outgrown_.clear(); }

  /// Return the address of the memory, and a number that changes each time the memory grows.
  [[nodiscard]] cuda::DevicePointer memory() const noexcept { return memory_.data(); }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// Records that `user` is done with the memory at its current point.
  void give_back(cuda::StreamHandle user);

 private:
  int device_;
  std::optional<cuda::OwnStream> stream_;  // these three must be destroyed with the context current
  std::optional<cuda::Event> returned_;
  cuda::DeviceMemory memory_;
  std::uint64_t generation_ = 0;
  std::vector<cuda::DeviceMemory> outgrown_;
  bool keeps_outgrown_ = false;
  bool is_lent_ = false;
};

}  // namespace attend::ring
