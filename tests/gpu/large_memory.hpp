// Gigabytes of GPU memory for tensors without a host copy, to test indices beyond 2^31.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/stream.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Memory of GPU 0. If other test processes hold too much, the constructor waits at most a minute for them to free it.
class LargeMemory {
 public:
  explicit LargeMemory(std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  cuda::DeviceMemory memory_;
};

/// Returns why GPU 0 is too small for `bytes` bytes, or an empty string if it is large enough.
[[nodiscard]] std::string memory_is_short(std::size_t bytes);

/// Copies row by row to a tensor of the same shape and dtype. The GPU must be able to access both tensors.
void copy_rows(const Tensor& from, const Tensor& to, cuda::StreamHandle stream);

/// Tensors interleaved in one memory. In one dimension, entries of a tensor are `step` bytes apart; in the others the
/// tensor is dense. Entries of several tensors alternate, so inputs of a call must not share this memory with its
/// outputs.
class FarTensors {
 public:
  FarTensors(const LargeMemory& memory, std::size_t dimension, std::int64_t step)
      : memory_(memory), dimension_(dimension), step_(step) {}

  /// Reserves memory for a tensor of this shape and dtype, without copying its numbers.
  [[nodiscard]] Tensor place(const TensorBuffer& like);

  /// Bytes available for one entry of all tensors together: (entries - 1) * step + kRoom bytes of memory are enough.
  static constexpr std::int64_t kRoom = 16 << 20;

 private:
  const LargeMemory& memory_;
  std::size_t dimension_;
  std::int64_t step_;
  std::int64_t used_ = 0;
};

/// A dense tensor that repeats the batch entries of a smaller one.
class Repeated {
 public:
  /// @param like   dense (batch, heads, seqlen, head_dim)
  /// @param batch  number of entries of the result
  Repeated(const TensorBuffer& like, std::int64_t batch, cuda::StreamHandle stream);

  [[nodiscard]] const Tensor& view() const { return view_; }
  /// Copies the first repetition to `like` and returns the number of entries that differ from it.
  [[nodiscard]] std::int64_t fetch_first(const TensorBuffer& like, cuda::StreamHandle stream) const;

 private:
  LargeMemory memory_;
  Tensor view_;
};

}  // namespace attend::test
