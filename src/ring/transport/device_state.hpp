// State of a rank on its GPU that is kept from call to call: a stream for exchanges, and the memory of messages.
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
  ~DeviceState();  ///< waits for the stream before it frees memory
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  [[nodiscard]] int device() const noexcept { return device_; }

  /// Returns the stream of exchanges. It runs concurrently with the caller's kernels and has a higher priority.
  [[nodiscard]] cuda::StreamHandle stream() const noexcept { return stream_->get(); }

  /// Returns memory for messages, whose address is a multiple of 256. Work that is queued on the stream `user` from now
  /// on may write to this memory. If the memory must grow, the function waits until earlier work no longer uses it.
  [[nodiscard]] cuda::DevicePointer borrow(std::size_t bytes, cuda::StreamHandle user);

  /// After this call, memory that has become too small is kept until drop_outgrown(), because other processes may have
  /// it open.
  void keep_outgrown() { keeps_outgrown_ = true; }
  [[nodiscard]] bool has_outgrown() const noexcept { return !outgrown_.empty(); }
  void drop_outgrown() { outgrown_.clear(); }

  /// Return the address of the memory, and a number that changes each time the memory is reallocated.
  [[nodiscard]] cuda::DevicePointer memory() const noexcept { return memory_.data(); }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// Ends the use of the memory. The last work that uses it is the work that is already queued on the stream `user`.
  void give_back(cuda::StreamHandle user);

 private:
  int device_;
  // This member and the next two must be destroyed while the context is current.
  std::optional<cuda::OwnStream> stream_;
  std::optional<cuda::Event> returned_;
  cuda::DeviceMemory memory_;
  std::uint64_t generation_ = 0;
  std::vector<cuda::DeviceMemory> outgrown_;
  bool keeps_outgrown_ = false;
  bool is_lent_ = false;
};

}  // namespace attend::ring
