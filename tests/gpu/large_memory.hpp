// Provides gigabytes of GPU memory for tensors without a host copy. Used to test indices beyond 2^31.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/stream.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Memory on GPU 0. If other test processes hold too much memory, the constructor waits up to a minute for them to free
/// it.
class LargeMemory {
 public:
  explicit LargeMemory(std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  cuda::DeviceMemory memory_;
};

/// Returns the reason why GPU 0 is too small for `bytes` bytes, or an empty string if it is large enough.
[[nodiscard]] std::string memory_is_short(std::size_t bytes);

/// Copies a tensor row by row to a tensor of the same shape and dtype. The GPU must be able to access both tensors.
void copy_rows(const Tensor& from, const Tensor& to, cuda::StreamHandle stream);

/// Tensors interleaved in one allocation. In one dimension, entries of a tensor are `step` bytes apart. In the other
/// dimensions the tensor is dense. Entries of different tensors alternate in memory, so the inputs of a call must not
/// share this allocation with its outputs.
class FarTensors {
 public:
  FarTensors(const LargeMemory& memory, std::size_t dimension, std::int64_t step)
      : memory_(memory), dimension_(dimension), step_(step) {}

  /// Reserves memory for a tensor with the shape and dtype of `like`. Does not copy its elements.
  [[nodiscard]] Tensor place(const TensorBuffer& like);

  /// Bytes available for one entry of all tensors together. The allocation needs (entries - 1) * step + kRoom bytes.
  static constexpr std::int64_t kRoom = 16 << 20;

 private:
  const LargeMemory& memory_;
  std::size_t dimension_;
  std::int64_t step_;
  std::int64_t used_ = 0;
};

/// A dense tensor in GPU memory that repeats the batch entries of a smaller tensor.
class Repeated {
 public:
  /// @param like   dense tensor of shape (batch, heads, seqlen, head_dim)
  /// @param batch  number of batch entries of the result
  Repeated(const TensorBuffer& like, std::int64_t batch, cuda::StreamHandle stream);

  [[nodiscard]] const Tensor& view() const { return view_; }
  /// Copies the first repetition to `like`. Returns how many later batch entries differ from their entry in the first
  /// repetition.
  [[nodiscard]] std::int64_t fetch_first(const TensorBuffer& like, cuda::StreamHandle stream) const;

 private:
  LargeMemory memory_;
  Tensor view_;
};

}  // namespace attend::test
