// The tensors that a mask function reads, on the GPU that makes the mask.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "core/mask_program.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// Copies captures from host memory to the GPU, contiguously, in the constructor. Captures that are already on the GPU
/// are used in place.
class DeviceCaptures {
 public:
  /// The context of `device` must be current. The copies are complete in stream order.
  /// @throws Error (kInvalidArgument) naming a capture on another GPU.
  DeviceCaptures(const std::vector<core::MaskCapture>& captures, int device, StreamHandle stream);

  [[nodiscard]] const std::vector<core::MaskCapture>& all() const noexcept { return captures_; }

 private:
  void copy(Tensor& tensor, StreamHandle stream);

  std::vector<core::MaskCapture> captures_;
  std::deque<Scratch> memory_;
  std::deque<std::vector<std::byte>> packed_;  // must live until the stream has copied it
};

}  // namespace attend::cuda
