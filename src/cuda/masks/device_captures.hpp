// The captures of a mask function, on the GPU that builds the mask. Captures are the tensors that the mask function
// reads.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "core/mask_program.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// Makes the captures available on a GPU. The constructor copies captures in host memory to the GPU as contiguous
/// tensors. Captures that are already on the GPU are not copied.
class DeviceCaptures {
 public:
  /// The context of `device` must be current. The copies are complete in stream order.
  /// @throws Error (kInvalidArgument) if a capture is on another GPU. The message names the capture.
  DeviceCaptures(const std::vector<core::MaskCapture>& captures, int device, StreamHandle stream);

  [[nodiscard]] const std::vector<core::MaskCapture>& all() const noexcept { return captures_; }

 private:
  void copy(Tensor& tensor, StreamHandle stream);

  std::vector<core::MaskCapture> captures_;
  std::deque<Scratch> memory_;
  std::deque<std::vector<std::byte>> packed_;  // contiguous host copies; must exist until the stream has copied them
};

}  // namespace attend::cuda
