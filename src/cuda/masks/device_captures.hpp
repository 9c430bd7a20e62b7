// The tensors that a mask function reads, on the GPU where the mask is made.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "core/mask_program.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

/// Those of the host are copied, dense, when it is made; the others stay where they are.
class DeviceCaptures {
 public:
  /// The context of `device` is current. The copies are done when the stream gets there.
  /// @throws Error (kInvalidArgument) naming a capture on another GPU.
  DeviceCaptures(const std::vector<core::MaskCapture>& captures, int device, StreamHandle stream);

  [[nodiscard]] const std::vector<core::MaskCapture>& all() const noexcept { return captures_; }

 private:
  void copy(Tensor& tensor, StreamHandle stream);

  std::vector<core::MaskCapture> captures_;
  std::deque<Scratch> memory_;
  std::deque<std::vector<std::byte>> packed_;  // has to live until the stream has copied it
};

}  // namespace attend::cuda
